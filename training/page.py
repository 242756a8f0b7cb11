"""The page of a run: its curves, the videos it made on the way, and its settings, in one file.

Made from what the run wrote, so a run that goes on, or that broke, has one as well.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.errors import DataError
from common.pages import (
    FOREIGN,
    PLAY,
    LossPoint,
    ValPoint,
    counted,
    curves,
    curves_data,
    figure,
    film,
    key_figures,
    page,
    settings_table,
    text,
)
from common.storage import write_atomic
from training.metrics import read_metrics

NUM_FILMS = 6
"""Of each caption, from the first step to the last."""


def write_run_page(run: Path) -> Path:
    """Writes `index.html` into the run's folder and returns its path.

    Raises `DataError` where the folder holds no run.
    """
    if not (run / "metrics.jsonl").is_file():
        raise DataError(f"{run} holds no run of `vfm pretrain`: there is no metrics.jsonl")
    records = read_metrics(run)
    loss = [LossPoint(step=r["step"], loss=r["loss"]) for r in records if "loss" in r]
    val = [
        ValPoint(
            step=r["step"],
            loss=r["val_loss"],
            per_sigma={float(sigma): value for sigma, value in r["val_per_sigma"].items()},
        )
        for r in records
        if "val_loss" in r
    ]
    html = page(
        title=f"Run {run.resolve().name}",
        body=_body(run, records, loss, val),
        styles=["curves.css", "films.css"],
        scripts=["linechart.js", "curves.js", "films.js"],
        data={"curves": curves_data(loss, val)},
    )
    path = run / "index.html"
    write_atomic(path, html.encode("utf-8"))
    return path


def _body(
    run: Path, records: list[dict[str, Any]], loss: Sequence[LossPoint], val: Sequence[ValPoint]
) -> str:
    settings = run / "config.yaml"
    values = yaml.safe_load(settings.read_text()) if settings.is_file() else {}
    return f"""<header class="hero wrap"><p class="eyebrow">vfm pretrain</p>
<h1 {FOREIGN}>{text(run.resolve().name)}</h1>{_figures(records, loss, val, values)}</header>
<nav class="contents" aria-label="Contents"><div class="wrap"><a href="#training">Training</a>
<a href="#samples">Videos</a><a href="#settings">Settings</a></div></nav>
<main id="main">
<section class="wrap" id="training"><h2>Training</h2>{curves(loss, val)}</section>
<section class="wrap" id="samples"><h2>Videos made on the way</h2>
{_samples(run / "samples")}</section>
<section class="wrap" id="settings"><h2>Settings</h2><div class="settings">
{settings_table(values)}</div></section>
</main>"""


def _figures(
    records: list[dict[str, Any]],
    loss: Sequence[LossPoint],
    val: Sequence[ValPoint],
    settings: dict[str, Any],
) -> str:
    wanted = settings.get("steps")
    shown = [("Steps", f"{loss[-1].step if loss else 0:,}", f"of {wanted:,}" if wanted else "")]
    if val:
        first = f"from {figure(val[0].loss)}" if len(val) > 1 else "before training"
        shown.append(("Validation loss", figure(val[-1].loss), first))
    steps = [r for r in records if "tokens_per_s" in r]
    if steps:
        # The last tenth, so that what the start cost is left out.
        late = sorted(r["tokens_per_s"] for r in steps[-max(1, len(steps) // 10) :])
        shown.append(("Speed", f"{late[len(late) // 2]:,.0f}", "tokens per second, median"))
        seen = sum(r["num_samples"] for r in steps)
        shown.append(("Samples", f"{seen:,}", f"{sum(r['num_tokens'] for r in steps):,} tokens"))
    psnr = next((r["tokenizer_psnr_db"] for r in records if "tokenizer_psnr_db" in r), None)
    if psnr is not None:
        shown.append(("Tokenizer", f"{psnr:.1f} dB", "PSNR of reconstruction"))
    return key_figures(shown)


def _samples(folder: Path) -> str:
    """A row of films for each caption, one for each step that made them."""
    by_caption: dict[str, list[tuple[int, Path]]] = {}
    for listing in sorted(folder.glob("step-*/captions.json")):
        step = int(listing.parent.name.removeprefix("step-"))
        for name, caption in json.loads(listing.read_text()).items():
            by_caption.setdefault(caption, []).append((step, listing.parent / name))
    if not by_caption:
        return (
            '<p class="muted">None: <code>samples.every=500</code> makes some every 500 steps.</p>'
        )
    told = f"<p>{counted(len(by_caption), 'caption')}, each as the model saw it step by step.</p>"
    return told + "".join(
        f'<article class="example sync"><div class="example-head"><blockquote {FOREIGN}>'
        f"{text(caption)}</blockquote>"
        f"{PLAY}</div>"
        f'<div class="films">{"".join(_film(step, path) for step, path in _spread(films))}</div>'
        "</article>"
        for caption, films in by_caption.items()
    )


def _spread(films: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
    """At most `NUM_FILMS`, evenly spread, the last among them."""
    if len(films) <= NUM_FILMS:
        return films
    last = len(films) - 1
    return [films[round(i * last / (NUM_FILMS - 1))] for i in range(NUM_FILMS)]


def _film(step: int, path: Path) -> str:
    return (
        f"<figure>{film(path, f'step {step}')}"
        f"<figcaption><b>Step {step:,}</b></figcaption></figure>"
    )
