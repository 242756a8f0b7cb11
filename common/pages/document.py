"""The document around a page: scripts and styles named by hash, data that cannot run."""

import base64
import hashlib
import json
import math
import mimetypes
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from common.pages.markup import encodable, text


def embed_json(value: object) -> str:
    """JSON that can stand inside a script element; NaN and infinities become null.

    `<` would end the element or open a comment, `&` would be an entity in XHTML, and U+2028 and
    U+2029 are line ends to older script parsers: all are written as `\\uXXXX`.
    """
    dumped = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        dumped = dumped.replace(character, f"\\u{ord(character):04x}")
    return encodable(dumped)


_KINDS = {"float64": "f64", "uint8": "u8", "uint16": "u16", "uint32": "u32"}


def packed(values: np.ndarray) -> dict[str, str]:
    """A column of numbers for `readColumn` of `columns.js`: its type, and base64 of its bytes.

    A fraction of the text that JSON numbers take, and exact. Takes `[n]` of float64 (NaN stays
    NaN) or of unsigned integers of 8, 16 or 32 bits.
    """
    kind = _KINDS[values.dtype.name]
    return {
        kind: base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()
    }


def data_uri(path: Path) -> str:
    """The file's content as a `data:` address, its type taken from its suffix."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def asset(name: str) -> str:
    """A style sheet or script of this package."""
    return (resources.files("common.pages") / "assets" / name).read_text(encoding="utf-8")


def page(
    *,
    title: str,
    body: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, object],
) -> str:
    """The whole document.

    `body` is markup, already escaped. `styles` and `scripts` are names of assets, joined in their
    order after the shared `base.css` and `base.js`; the scripts share one function scope. `data`
    maps an element id to the value that the script reads with `readData(id)`.
    """
    style = "\n".join(asset(name) for name in ("base.css", *styles))
    joined = "\n".join(asset(name) for name in ("base.js", *scripts))
    script = f'(() => {{\n"use strict";\n{joined}\n}})();\n'
    # 'self' does not cover sidecar files when a browser treats every file: address as its own
    # origin, so the scheme is named as well.
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src 'self' file: data:",
            "media-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    blocks = "\n".join(
        f'<script type="application/json" id="{text(name)}">{embed_json(value)}</script>'
        for name, value in data.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to content</a>
{body}
{blocks}
<script>{script}</script>
</body>
</html>
"""


def _digest(content: str) -> str:
    hashed = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(hashed).decode('ascii')}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
