"""Pieces of markup and ways of writing numbers that the pages share.

Arguments that may hold foreign text are escaped here.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence

# Attributes of an element that shows foreign text: its direction and line breaks stay its own.
FOREIGN = 'class="untrusted" dir="auto"'


def text(value: object) -> str:
    """`value` for use in markup or in a quoted attribute."""
    return html.escape(encodable(str(value)), quote=True)


def encodable(value: str) -> str:
    """File names that are no UTF-8 hold lone surrogates, which no file can: shown as `\\udcXX`."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def duration(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def figure(value: float) -> str:
    """A number for people: thousands separated, about four significant digits."""
    if not math.isfinite(value):
        return "not a number"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """`1 clip`, `2,000 clips`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def badge(label: str, fill: str) -> str:
    """A label with a dot of the colour that class `fill` gives."""
    return f'<span class="badge">{dot(fill)}<span {FOREIGN}>{text(label)}</span></span>'


def dot(fill: str) -> str:
    """A square of the colour that class `fill` gives."""
    return f'<span class="dot {fill}"></span>'


def key_figures(figures: Sequence[tuple[str, str, str]]) -> str:
    """A row of large numbers: (name, value, note)."""
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>"
        for name, value, note in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: bool = False,
    code: bool = False,
) -> str:
    """A table that scrolls sideways where it must; `numeric` and `code` hold for all its cells."""
    kind = ' class="num"' if numeric else ""
    tag = "code" if code else "span"
    top = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for name in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}><{tag} {FOREIGN}>{text(cell)}</{tag}></td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="table" role="region" aria-label="Table" tabindex="0"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def stacked_bar(parts: Sequence[tuple[str, str, float]], total_s: float) -> str:
    """One bar of `(label, class that fills it, seconds)` as markup; what is missing stays empty.

    Gaps keep neighbours apart without colour, and a part too thin to see is drawn 1.5 units wide
    of the bar's 1000.
    """
    total_s = max(total_s, sum(seconds for _, _, seconds in parts)) or 1.0
    rects, left = [], 0.0
    for label, fill, seconds in parts:
        width = 1000 * seconds / total_s
        rects.append(
            f'<rect class="{fill}" x="{left:.2f}" y="0" height="30" '
            f'width="{max(width - 2, min(width, 1.5)):.2f}"><title>{text(label)}: '
            f"{duration(seconds)}</title></rect>"
        )
        left += width
    said = ", ".join(f"{label} {duration(seconds)}" for label, _, seconds in parts)
    return (
        f'<svg class="bar" viewBox="0 0 1000 30" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(said)}">{"".join(rects)}</svg>'
    )


def settings_table(values: Mapping[str, object]) -> str:
    """Nested settings as rows of `dotted.key`, value."""
    return table(["Setting", "Value"], _flat(values, ""), code=True)


def _flat(values: Mapping[str, object], prefix: str) -> list[list[str]]:
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, default=str)
            rows.append([f"{prefix}{key}", shown])
    return rows
