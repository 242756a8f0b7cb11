"""Whether a hub id can be read, told in one line and at once."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import DataError

TIMEOUT_S = 10.0


def check_hub(setting: str, path: str, what: str, files: Sequence[str]) -> None:
    """Returns where `path` is a folder, a hub id with one of `files` kept from before, or an id
    that the hub knows.

    The libraries themselves try an unreachable hub for a minute, and warn at each trial.

    Args:
        setting: as in `tokenizer.path`, for the message.
        what: is looked for there, as in "a tokenizer".
    Raises `DataError` naming what is wrong.
    """
    if Path(path).expanduser().is_dir():
        return
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    said = f"no {what} can be read from {setting}={path}: there is no such folder, and "
    try:
        if any(isinstance(try_to_load_from_cache(path, file), str) for file in files):
            return
        HfApi().model_info(path, timeout=TIMEOUT_S)
    except HFValidationError:
        raise DataError(f"{said}it is no hub id (OWNER/NAME) either") from None
    except RepositoryNotFoundError:
        raise DataError(f"{said}the hub knows no such id, or does not show it to you") from None
    except Exception as error:  # Whatever the client that the library uses calls its troubles.
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{said}the hub cannot be reached to look for the id: {reason}") from None
