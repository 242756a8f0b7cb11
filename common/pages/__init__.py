"""Pages that are one HTML file: no server, no request to anywhere, and only our own script runs.

Names and captions come from strangers. They reach a page by two ways only: `text`, which escapes
them for markup, and `embed_json`, which makes a data block that the page's own script reads with
`JSON.parse` and shows with `textContent`. A Content-Security-Policy names the one script and the
one style sheet by hash, so that markup that slipped through would still be dead.
"""

from common.pages.curves import LossPoint, ValPoint, curves, curves_data
from common.pages.document import data_uri, embed_json, packed, page
from common.pages.films import PLAY, film
from common.pages.markup import (
    FOREIGN,
    badge,
    counted,
    dot,
    duration,
    figure,
    key_figures,
    settings_table,
    stacked_bar,
    table,
    text,
)

__all__ = [
    "FOREIGN",
    "PLAY",
    "LossPoint",
    "ValPoint",
    "badge",
    "counted",
    "curves",
    "curves_data",
    "data_uri",
    "dot",
    "duration",
    "embed_json",
    "figure",
    "film",
    "key_figures",
    "packed",
    "page",
    "settings_table",
    "stacked_bar",
    "table",
    "text",
]
