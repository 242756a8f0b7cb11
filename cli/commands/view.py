"""`vfm view`: opens the page of a folder that vfm made."""

import os
import sys
import webbrowser
from pathlib import Path

from common.errors import VfmError

HELP = """
open the page of a curated folder, a run, a video, or any folder that holds one

usage: vfm view DIR [open=false]
       vfm view FILE.mp4 [open=false]

Prints the page's path and opens it in the browser. The page is a file and needs no server.
With open=false, or on a machine without a display, the path is only printed. The page of a run of
`vfm pretrain` is made anew each time, and shows how far the run is; that of a video of
`vfm generate` lies beside it.

examples:
  vfm view curated
  vfm view run
  vfm view jeep.mp4
  vfm view demo_out open=false
"""

PAGES = ("index.html", "report/index.html")


def run(argv: list[str]) -> int:
    from common.remote import is_url

    folders = [word for word in argv if not word.startswith("open=")]
    opens = [word.removeprefix("open=") for word in argv if word.startswith("open=")]
    if len(folders) != 1 or any(value not in ("true", "false") for value in opens):
        raise VfmError("usage: vfm view DIR [open=false]")
    if not folders[0].strip():
        raise VfmError("the folder's name is empty; usage: vfm view DIR [open=false]")
    if is_url(folders[0]):
        raise VfmError(
            f"{folders[0]} lies in an object store: copy its folder report/ to this machine and "
            "view that; the page needs nothing else"
        )
    page = find_page(Path(folders[0]))
    print(page)
    if "false" not in opens and has_display():
        webbrowser.open(page.as_uri())
    return 0


def find_page(folder: Path) -> Path:
    """The page of a folder, as an absolute path. Raises `VfmError` that says where others lie."""
    if folder.is_file() and folder.suffix == ".html":
        return folder.resolve()
    if folder.is_file() and folder.suffix == ".mp4":
        from inference.page import write_video_page

        return write_video_page(folder).resolve()
    if folder.is_file():
        raise VfmError(f"{folder} is neither a folder, a page (.html) nor a video (.mp4)")
    if not folder.is_dir():
        raise VfmError(f"there is no folder {folder}")
    if (folder / "metrics.jsonl").is_file():
        from training.page import write_run_page

        return write_run_page(folder).resolve()
    for name in PAGES:
        if (folder / name).is_file():
            return (folder / name).resolve()
    inside = sorted(page.parent for name in PAGES for page in folder.glob(f"*/{name}"))
    below = f"; below it: {', '.join(str(f) for f in inside[:5])}" if inside else ""
    raise VfmError(
        f"{folder} holds no page (neither {' nor '.join(PAGES)}){below}; "
        "a finished `vfm curate` or `vfm demo` writes one, and `vfm pretrain` begins one"
    )


def has_display() -> bool:
    """Whether a browser window can be shown; a text browser would only take the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
