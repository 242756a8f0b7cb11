"""How soon the curation report of many clips shows, and how soon it answers a dragged limit."""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from playwright.sync_api import Browser, sync_playwright

from benchmarks.row import Row
from common.errors import VfmError
from curation.report import write_report
from curation.scores import UNITS

HELP = """
how soon the curation report shows, and how soon it answers a dragged limit

Writes a folder of made-up clips with every score and opens its report from the disk in Chromium, a
fresh context each round. `first paint` is the browser's own first-contentful-paint, `first cards`
the time until the contact sheet holds clips. For `drag` the limit of a score moves over the chart
in steps; each step is timed from the event until the frame after it has been laid out and painted,
so the shortest possible is the wait for a frame. Medians over the rounds, and over all steps; also
the worst step of all. CPU times are those of the page's main thread, which other work on the
machine does not lengthen as it does the others; `load` is how busy it was.

examples:
  vfm bench report_page
  vfm bench report_page clips=200000 rounds=3
"""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRAG = """async (steps) => {
  const chart = document.querySelector('.histogram:not(.waiting) .chart');
  const box = chart.getBoundingClientRect();
  chart.setPointerCapture = () => {};
  const send = (kind, share) => chart.dispatchEvent(new PointerEvent(kind, {
    clientX: box.left + share * box.width, clientY: box.top + 40, bubbles: true, button: 0,
  }));
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const after = new MessageChannel();  // Its message comes once the frame is painted.
    after.port1.onmessage = done;
    after.port2.postMessage(0);
  }));
  const times = [];
  for (let step = 0; step < steps; step += 1) {
    const start = performance.now();
    send(step ? 'pointermove' : 'pointerdown', 0.05 + (0.9 * step) / steps);
    await painted();
    times.push(performance.now() - start);
  }
  send('pointerup', 0.95);
  return times;
}"""


@dataclass(kw_only=True)
class Settings:
    clips: int = 50_000
    sources: int = 400
    rounds: int = 5
    steps: int = 40
    """Of one drag."""


def measure(settings: Settings) -> Iterator[Row]:
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise VfmError(f"no browser on PATH (looked for {', '.join(_BROWSERS)})")
    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder(Path(scratch), settings)
        start = time.perf_counter()
        page = write_report(folder)
        written_s = time.perf_counter() - start
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=found, args=["--no-sandbox", "--disable-gpu"]
            )
            rounds = [_visit(browser, page, settings.steps) for _ in range(settings.rounds)]
            subject = f"Chromium {browser.version}"
            browser.close()
        size = page.stat().st_size
    steps = [step for one in rounds for step in one["drag"]]
    found_rows = [
        ("written", written_s, "s"),
        ("size", size / 1e6, "MB"),
        ("first paint", statistics.median(one["paint"][0] for one in rounds), "ms"),
        ("first cards", statistics.median(one["cards"][0] for one in rounds), "ms"),
        ("first cards, CPU", statistics.median(one["opened"][0] for one in rounds), "ms"),
        ("drag, median step", statistics.median(steps), "ms"),
        ("drag, 95th percentile", float(np.percentile(steps, 95)), "ms"),
        ("drag, worst step", max(steps), "ms"),
        ("drag, CPU per step", statistics.median(one["step"][0] for one in rounds), "ms"),
        ("load", os.getloadavg()[0], "1"),
    ]
    for metric, value, unit in found_rows:
        yield Row(
            benchmark="report_page",
            case=f"{settings.clips:,} clips, {len(UNITS)} scores",
            subject=subject,
            metric=metric,
            value=value,
            unit=unit,
        )


def _visit(browser: Browser, path: Path, steps: int) -> dict[str, list[float]]:
    """Milliseconds of one opening and one drag."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    probe = context.new_cdp_session(page)
    probe.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_ms() -> float:
        told = probe.send("Performance.getMetrics")["metrics"]
        return 1e3 * next(m["value"] for m in told if m["name"] == "TaskDuration")

    page.goto(path.as_uri())
    page.wait_for_selector(".card")
    opened_ms = busy_ms()
    cards = page.evaluate("performance.now()")
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    found = {"cards": [cards], "paint": [page.evaluate(paint)], "opened": [opened_ms]}
    page.locator("#browse").scroll_into_view_if_needed()
    page.wait_for_selector(".histogram .chart")
    page.wait_for_timeout(500)
    before_ms = busy_ms()
    found["drag"] = page.evaluate(_DRAG, steps)
    found["step"] = [(busy_ms() - before_ms) / steps]
    context.close()
    return found


def _folder(folder: Path, settings: Settings) -> Path:
    random = np.random.default_rng(0)
    count = settings.clips
    source = np.sort(random.integers(0, settings.sources, count))
    scores = {name: random.lognormal(-2, 1, count).round(6) for name in UNITS}
    start_s = np.arange(count) % 500 * 9.0
    limits = {"blur": 0.06, "motion": 0.04}
    low = np.stack([scores[name] < limit for name, limit in limits.items()])
    reasons = np.where(low[0], "blur", np.where(low[1], "low_motion", ""))
    clips = {
        "clip_id": [f"{number:016x}" for number in range(count)],
        "video_id": [f"v{number}" for number in source],
        "source": [f"footage/take_{number:05d}.mp4" for number in source],
        "start_s": start_s,
        "end_s": start_s + random.uniform(2, 9, count).round(3),
        "kept": ~low.any(axis=0),
        "reject_reason": [reason or None for reason in reasons],
        "caption": [f"A made-up clip with the number {number}." for number in range(count)],
        **{f"score_{name}": values for name, values in scores.items()},
    }
    pyarrow.parquet.write_table(pyarrow.table(clips), folder / "clips.parquet")
    summary = {"thresholds": {name: {"min": limit} for name, limit in limits.items()}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
