"""The page that `vfm demo` ends with: one HTML file that tells the whole first run.

Everything is in the file, videos too, so it can be mailed or archived. It says what happened: a
check that failed is called failed in the first paragraph.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.demo.facts import (
    DemoClip,
    DemoExample,
    DemoPage,
    Learning,
    TokenizerFacts,
    checks,
)
from common.pages import (
    FOREIGN,
    PLAY,
    badge,
    counted,
    curves,
    curves_data,
    data_uri,
    dot,
    duration,
    figure,
    film,
    key_figures,
    page,
    settings_table,
    stacked_bar,
    table,
    text,
)
from common.storage import write_atomic

__all__ = [
    "DemoClip",
    "DemoExample",
    "DemoPage",
    "Learning",
    "TokenizerFacts",
    "write_demo_page",
]

NUM_HEATS = 8


def write_demo_page(path: Path, demo: DemoPage) -> Path:
    """Writes the page to `path` and returns it. A video or thumbnail that is named must exist."""
    html = page(
        title=demo.title,
        body=_body(demo),
        styles=["curves.css", "films.css", "demo.css"],
        scripts=["linechart.js", "curves.js", "films.js", "demo.js"],
        data={"curves": curves_data(demo.loss, demo.val)},
    )
    write_atomic(path, html.encode("utf-8"))
    return path


def _body(demo: DemoPage) -> str:
    return f"""<header class="hero wrap">
<p class="eyebrow">vfm {text(demo.version)}, {text(demo.created)}</p>
<h1>{text(demo.title)}</h1>
{_result(demo)}
</header>
<nav class="contents" aria-label="Contents"><div class="wrap"><a href="#clip-section">Clips</a>
<a href="#tokenizer">Tokenizer</a><a href="#training">Training</a><a href="#examples">Videos</a>
<a href="#distances">Captions</a><a href="#run">Run</a></div></nav>
<main id="main">
<section class="wrap" id="clip-section"><h2>From footage to clips</h2>{_clips(demo.clips)}</section>
<section class="wrap" id="tokenizer"><h2>The tokenizer</h2>{_tokenizer(demo)}</section>
<section class="wrap" id="training"><h2>Training</h2>{curves(demo.loss, demo.val)}</section>
<section class="wrap" id="examples"><h2>Generated video</h2>{_examples(demo.examples)}</section>
<section class="wrap" id="distances"><h2>Does the caption matter?</h2>
{_distances(demo.learning)}</section>
<section class="wrap" id="run"><h2>The run</h2>{_run(demo)}</section>
</main>"""


def _result(demo: DemoPage) -> str:
    kept = sum(clip.kept for clip in demo.clips)
    total_s = sum(demo.wall_s.values())
    took = f"In {duration(total_s)} this run" if total_s else "This run"
    did = f"{took} kept {kept} of {counted(len(demo.clips), 'clip')}"
    steps = [point.step for point in (*demo.loss, *demo.val)]
    if steps:
        did += f", trained a model on them for {counted(max(steps), 'step')}"
    if demo.examples:
        did += f", and generated {counted(len(demo.examples), 'video')}, shown below"
    found = checks(demo.learning) if demo.learning else []
    failed = sum(not check.passed for check in found)
    if not found:
        verdict = "Whether the model learned its captions was not measured."
    elif failed:
        verdict = f"{failed} of its {len(found)} checks failed."
    else:
        verdict = f"All of its {len(found)} checks passed."
    rows = "".join(
        f'<li><span class="verdict {"passed" if check.passed else "failed"}">'
        f"{'passed' if check.passed else 'failed'}</span><span>{check.sentence}</span></li>"
        for check in found
    )
    listed = f'<ul class="checks">{rows}</ul>' if rows else ""
    figures = [("Clips kept", f"{kept:,}", f"of {len(demo.clips):,}")]
    if total_s:
        figures.insert(0, ("Whole run", duration(total_s), _slowest(demo.wall_s)))
    if demo.tokenizer:
        psnr_db, _ = next(iter(demo.tokenizer.quality.values()))
        figures.append(("Tokenizer", f"{psnr_db:.1f} dB", "PSNR of reconstruction"))
    if demo.learning:
        learning = demo.learning
        first = figure(learning.first_val_loss)
        figures.append(("Validation loss", figure(learning.last_val_loss), f"from {first}"))
        exchanged = f"{learning.shuffled_matched} with exchanged captions"
        figures.append(("Captions matched", f"{learning.matched} of {learning.total}", exchanged))
    return f'<p class="lede">{did}. {verdict}</p>{listed}{key_figures(figures)}'


def _slowest(wall_s: Mapping[str, float]) -> str:
    name = max(wall_s, key=lambda part: wall_s[part])
    return f"{name} {duration(wall_s[name])}"


def _clips(clips: Sequence[DemoClip]) -> str:
    if not clips:
        return '<p class="muted">No clip came out of the footage.</p>'
    counts: dict[str, int] = {}
    for clip in clips:
        label = _label(clip)
        counts[label] = counts.get(label, 0) + 1
    reasons = sorted((name for name in counts if name != "kept"), key=lambda n: (-counts[n], n))
    fills = {"kept": "fill-kept"} | {
        reason: f"fill-{min(i, 7)}" for i, reason in enumerate(reasons)
    }
    options = [("all", "All", len(clips), ""), ("kept", "Kept", counts.get("kept", 0), "fill-kept")]
    if len(reasons) > 1:
        rejected = sum(counts[reason] for reason in reasons)
        options.append(("rejected", "All rejected", rejected, ""))
    options += [(reason, reason, counts[reason], fills[reason]) for reason in reasons]
    chips = "".join(
        f'<button type="button" data-label="{text(label)}" aria-pressed="'
        f'{"true" if label == "all" else "false"}">{dot(fill) if fill else ""}'
        f'<span class="untrusted">{text(name)}</span><span class="count">{count:,}</span></button>'
        for label, name, count, fill in options
    )
    sources = counted(len({clip.source for clip in clips}), "source")
    return (
        f"<p>{counted(len(clips), 'clip')} from {sources}, each a shot of its own. Rejected clips "
        "stay listed with the reason and their scores.</p>"
        f'<div class="chips controls" id="clip-filters" role="group" aria-label="Show">{chips}'
        f'</div><ol class="sheet" id="clips">'
        f"{''.join(_card(clip, fills[_label(clip)]) for clip in clips)}</ol>"
    )


def _label(clip: DemoClip) -> str:
    return "kept" if clip.kept else (clip.reject_reason or "no reason given")


def _card(clip: DemoClip, fill: str) -> str:
    label = _label(clip)
    picture = (
        f'<img src="{data_uri(clip.thumbnail)}" alt="" loading="lazy">'
        if clip.thumbnail
        else "no picture"
    )
    caption = (
        f'<p class="caption untrusted" dir="auto">{text(clip.caption)}</p>' if clip.caption else ""
    )
    scores = "".join(
        f"<span>{text(name)} {figure(value)}</span>" for name, value in clip.scores.items()
    )
    return (
        f'<li class="card {"kept" if clip.kept else "rejected"}" data-label="{text(label)}">'
        f'<div class="thumb">{picture}</div><div class="topline">{badge(label, fill)}'
        f'<span class="meta">{duration(clip.end_s - clip.start_s)}</span></div>{caption}'
        f'<div class="meta untrusted" dir="auto">{text(clip.label)}: {text(clip.source)}, '
        f"{clip.start_s:.2f} to {clip.end_s:.2f} s</div>"
        f'<div class="scores">{scores}</div></li>'
    )


def _tokenizer(demo: DemoPage) -> str:
    facts = demo.tokenizer
    if facts is None:
        return '<p class="muted">The tokenizer was not measured in this run.</p>'
    told = (
        "<p>The model does not see pixels but the tokenizer's compact code of them. What the code "
        f"cannot hold, no generated video can show. {text(facts.how)}</p>"
    )
    figures = key_figures([("Compression", facts.compression, "")]) + table(
        ["Held-out windows", "PSNR (dB)", "SSIM"],
        [[name, f"{psnr:.1f}", f"{ssim:.3f}"] for name, (psnr, ssim) in facts.quality.items()],
        numeric=True,
    )
    if not demo.examples:
        return f'{told}{figures}<p class="muted">There is no example to look at.</p>'
    return f"""{told}<div class="pair"><div class="sync"><div class="stage">
<video data-same-as="real-0" muted loop playsinline preload="auto" aria-label="Real video"></video>
<video class="over" data-same-as="reconstructed-0" muted loop playsinline preload="auto"
 aria-label="The same video through the tokenizer"></video><div class="divider"></div></div>
<div class="under"><label for="wipe">Real</label>
<input id="wipe" type="range" min="0" max="100" value="50"
 aria-label="Divider between real and reconstructed"><span>Reconstructed</span>{PLAY}</div></div>
{figures}</div>"""


def _examples(examples: Sequence[DemoExample]) -> str:
    if not examples:
        return '<p class="muted">No video was generated in this run.</p>'
    told = (
        "<p>Each row starts from one caption. The generated video is made from noise and the "
        "caption alone; the reconstruction is the best this tokenizer could show.</p>"
    )
    return told + "".join(_example(number, example) for number, example in enumerate(examples))


def _example(number: int, example: DemoExample) -> str:
    films = [
        ("real", example.real, "Real", "the clip that the caption describes"),
        ("reconstructed", example.reconstructed, "Reconstructed", f"{example.psnr_db:.1f} dB PSNR"),
        ("generated", example.generated, "Generated", "from this caption"),
    ]
    if example.shuffled:
        films.append(
            ("shuffled", example.shuffled, "Exchanged", "same noise, another clip's caption")
        )
    figures = "".join(
        f'<figure class="{kind}">'
        + film(path, f"{name} video", f'id="{kind}-{number}"')
        + f"<figcaption><b>{name}</b>{note}</figcaption></figure>"
        for kind, path, name, note in films
    )
    caption = (
        f"<blockquote {FOREIGN}>{text(example.caption)}</blockquote>"
        if example.caption
        else '<p class="muted">This clip has no caption.</p>'
    )
    return (
        f'<article class="example sync"><div class="example-head"><div>{caption}'
        f'<p class="small muted">{text(example.clip_label)}</p></div>{PLAY}</div>'
        f'<div class="films">{figures}</div></article>'
    )


def _distances(learning: Learning | None) -> str:
    if learning is None:
        return '<p class="muted">Distances between generated and real clips were not measured.</p>'
    told = f"<p>{checks(learning)[1].sentence} {text(learning.note)}</p>"
    if not learning.distances:
        return f'{told}<p class="muted">The distances themselves were not kept.</p>'
    columns = learning.column_labels
    rows = []
    for place, (label, row) in enumerate(zip(learning.row_labels, learning.distances, strict=True)):
        own = columns.index(label) if label in columns else place
        known = [value for value in row if math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=0.0)
        cells = "".join(
            _heat_cell(value, low=low, high=high, own=column == own)
            for column, value in enumerate(row)
        )
        rows.append(f'<tr><th scope="row" {FOREIGN}>{text(label)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col" {FOREIGN}>{text(name)}</th>' for name in columns)
    return (
        f'{told}<p class="small muted wide-gap">Distance from the video generated for each caption '
        "(rows) to each real clip (columns). Within a row, a stronger shade is nearer; framed is "
        "the nearest, dashed the caption's own clip.</p>"
        '<div class="table" role="region" aria-label="Distances" tabindex="0"><table class="heat">'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _heat_cell(value: float, *, low: float, high: float, own: bool) -> str:
    if not math.isfinite(value):
        return "<td>&ndash;</td>"
    near = (high - value) / (high - low) if high > low else 0.0
    nearest = value == low
    classes = f"heat-{min(int(near * NUM_HEATS), NUM_HEATS - 1)}"
    classes += (" own" if own else "") + (" nearest" if nearest else "")
    said = ", ".join(name for name, so in (("nearest", nearest), ("own clip", own)) if so)
    title = f' title="{said}"' if said else ""
    return f'<td class="{classes}"{title}>{value:.3g}</td>'


def _run(demo: DemoPage) -> str:
    parts = []
    if demo.wall_s:
        named = [
            (name, f"fill-{min(i, 7)}", seconds)
            for i, (name, seconds) in enumerate(demo.wall_s.items())
        ]
        keys = "".join(
            f"<span>{dot(fill)}{text(name)} {duration(seconds)}</span>"
            for name, fill, seconds in named
        )
        bar = stacked_bar(named, sum(demo.wall_s.values()))
        parts.append(f'<p>Where the time went.</p>{bar}<div class="keys">{keys}</div>')
    machine = [[name, value] for name, value in demo.machine.items()]
    parts.append(table(["Machine and versions", ""], [*machine, ["vfm", demo.version]]))
    if not demo.settings:
        return "".join(parts) + '<p class="muted">The settings were not recorded.</p>'
    sections = "".join(
        f"<details><summary>{text(name)}</summary>{settings_table(values)}</details>"
        for name, values in demo.settings.items()
    )
    return (
        f'{"".join(parts)}<h3 class="wide-gap">Settings</h3><div class="settings">{sections}</div>'
    )
