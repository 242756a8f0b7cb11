"""The pages of a run and of a generated video in a browser. Tier: wiring; needs Chromium."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands.view import find_page
from common.errors import DataError
from common.media import write_video
from tests.curation.footage import shot
from tests.pages.browser import Visitor
from tests.pages.samples import HOSTILE
from training.page import write_run_page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 30 steps that made videos of two captions after each tenth."""
    folder = tmp_path / "a run"
    records: list[dict[str, Any]] = [{"step": 0, "tokenizer_psnr_db": 27.5}]
    for step in range(31):
        if step:
            records.append(
                {"step": step, "loss": 1 / step, "tokens_per_s": 100.0 + step}
                | {"num_samples": 4, "num_tokens": 250}
            )
        if step % 10:
            continue
        per_sigma = {"0.3": 0.5 / (1 + step), "3": 1 / (1 + step)}
        records.append({"step": step, "val_loss": 0.7 / (1 + step), "val_per_sigma": per_sigma})
        if step:
            made = folder / "samples" / f"step-{step:08d}"
            made.mkdir(parents=True)
            for i in range(2):
                write_video(made / f"{i}.mp4", shot(i, 8), fps=8)
            captions = {"0.mp4": HOSTILE[0], "1.mp4": "a fish"}
            (made / "captions.json").write_text(json.dumps(captions))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines + '{"step": 31, "lo')
    (folder / "config.yaml").write_text("steps: 40\nmodel:\n  hidden_size: 64\n")
    return folder


def test_it_shows_curves_videos_and_settings(visit: Visitor, run: Path) -> None:
    seen = visit(find_page(run))
    page = seen.page
    figures = page.locator(".figures").inner_text()
    for wanted in ("30", "of 40", "0.02258", "from 0.7", "129", "120", "7,500 tokens", "27.5 dB"):
        assert wanted in figures, wanted
    assert page.locator("#loss-chart .line-chart path.line").count() == 3
    assert page.locator("#sigma-chart .line-chart path.line").count() == 2
    rows = page.locator(".example")
    assert rows.count() == 2
    assert rows.nth(0).locator("blockquote").inner_text() == HOSTILE[0]
    assert rows.nth(1).locator("figcaption").all_inner_texts() == ["Step 10", "Step 20", "Step 30"]
    rows.nth(1).scroll_into_view_if_needed()
    seen.wait_until(
        "[...document.querySelectorAll('video')].slice(3).every(v => v.currentTime > 0)"
    )
    settings = page.locator("#settings").inner_text()
    assert "model.hidden_size" in settings
    seen.assert_clean()


def test_a_run_that_has_only_begun_has_a_page(visit: Visitor, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    seen = visit(write_run_page(tmp_path))
    assert "No training step was recorded." in seen.page.locator("#training").inner_text()
    assert "samples.every" in seen.page.locator("#samples").inner_text()
    seen.assert_clean()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run of `vfm pretrain`"):
        write_run_page(tmp_path)


def test_a_generated_video_has_a_page(visit: Visitor, tmp_path: Path) -> None:
    video = tmp_path / "a fish.mp4"
    write_video(video, shot(0, 8), fps=8)
    with pytest.raises(DataError, match=r"no settings beside it \(a fish.yaml\)"):
        find_page(video)
    settings = {"prompt": HOSTILE[1], "sampler": {"steps": 35}}
    video.with_suffix(".yaml").write_text(json.dumps(settings))
    seen = visit(find_page(video))
    assert seen.page.locator("h1").inner_text() == HOSTILE[1]
    assert "sampler.steps" in seen.page.locator(".settings").inner_text()
    seen.wait_until("document.querySelector('video').currentTime > 0")
    seen.assert_clean()
