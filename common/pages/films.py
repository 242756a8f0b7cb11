"""Videos of a page that play together; it takes the style sheet `films.css` and the script
`films.js`, which starts every element of class `sync` at once and works its `PLAY` button."""

from pathlib import Path

from common.pages.document import data_uri
from common.pages.markup import text

PLAY = '<button type="button" class="play" hidden>Play</button>'


def film(path: Path, label: str, attributes: str = "") -> str:
    """A silent video within the page, told as `label`; `attributes` are markup of the element."""
    return (
        f'<video {attributes} src="{data_uri(path)}" muted loop playsinline preload="auto" '
        f'aria-label="{text(label)}"></video>'
    )
