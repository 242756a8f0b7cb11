"""Limits that are tried out on the report page: they count as Python decides.

Tier: wiring (no process group); needs Chromium.
"""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from playwright.sync_api import Locator, Page, expect

from curation.config import CurateConfig
from curation.decide import RULES, Decision, decide
from curation.report import write_report
from curation.scores import SCORES, UNITS, Score
from curation.stages.analyse import ScoredClip
from tests.pages.browser import Visitor
from tests.pages.samples import clip_table, write_folder
from tests.pages.test_report_page import assert_first, ids_where, shown_clips

THRESHOLDS = {"blur": {"min": 40.0}, "motion": {"min": 0.004}, "luma": {"min": 20.0}}
LIMITS = {"blur.min": 40.0, "motion.min": 0.004, "dark.min": 20.0}


def python_decides(clips: Mapping[str, list], limits: Mapping[str, float | None]) -> list[bool]:
    """Which clips `vfm refilter` keeps, by the function that it decides with."""
    plain = decide(CurateConfig(input="in", output="out", min_clip_s=0.0), [])
    none = {rule.setting: None for rule in RULES}
    decision: Decision = dataclasses.replace(plain, limits=none | dict(limits))
    absent = Score(value=0.0, valid=False)
    columns = {
        name: list(map(Score, clips[f"score_{name}"], clips[f"valid_{name}"]))
        for name in SCORES
        if f"score_{name}" in clips
    }
    kept = []
    for i in range(len(clips["clip_id"])):
        scores = {name: columns[name][i] if name in columns else absent for name in SCORES}
        clip = ScoredClip(
            clip_id="", start_us=0, end_us=2_000_000, num_frames=50, scores=scores, crop=None
        )
        kept.append(decision.reject_reason(clip) is None)
    return kept


def panel_of(page: Page, score: str) -> Locator:
    """The panel of a score; panels are built as they come into view."""
    panel = page.locator(f'[data-score="{score}"]')
    panel.scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-score="{score}"]:not(.waiting)')
    return panel


def type_limit(page: Page, setting: str, value: str) -> None:
    panel = panel_of(page, next(rule.score for rule in RULES if rule.setting == setting))
    field = panel.locator(f'[id="limit {setting}"]')
    field.fill(value)
    field.press("Enter")
    field.blur()
    page.wait_for_timeout(60)


@pytest.fixture(scope="module")
def clips() -> dict[str, list]:
    return clip_table(200)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, clips: dict[str, list]) -> Path:
    return write_report(write_folder(tmp_path_factory.mktemp("limits") / "out it's", clips))


def test_every_score_has_a_chart_with_its_limits(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    panel_of(page, "luma")
    panels = page.locator(".histogram")
    assert [one.get_attribute("data-score") for one in panels.all()] == ["blur", "motion", "luma"]
    missing = clips["valid_motion"].count(False)
    measured = zip(clips["score_motion"], clips["valid_motion"], strict=True)
    low = sum(value < 0.004 for value, valid in measured if valid)
    said = panels.nth(1).locator("p").inner_text()
    assert said == f"{low} of {200 - missing} outside, {missing} without a measure"
    assert panels.first.locator(".limit-label").first.text_content() == "at least 40"
    assert panels.locator('[role="slider"]').count() == 6
    assert page.get_by_label("blur: at most").get_attribute("aria-valuetext") == "no limit"
    assert page.locator(".offer").is_hidden()
    assert page.locator(".change").inner_text() == "as the run decided"


def test_a_dragged_limit_shows_the_yield_and_the_clips_that_flip(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    seen = visit(report)
    page = seen.page
    chart = panel_of(page, "blur").locator(".chart")
    box = chart.bounding_box()
    assert box is not None
    grip = page.get_by_label("blur: at least").locator(".grip").bounding_box()
    assert grip is not None
    page.mouse.move(grip["x"] + 2, grip["y"] + 5)
    page.mouse.down()
    for share in (0.2, 0.3, 0.45):
        page.mouse.move(box["x"] + share * box["width"], grip["y"] + 5)
        page.wait_for_timeout(60)
        limit = float(page.locator('[id="limit blur.min"]').input_value())
        assert limit > 40
        would = python_decides(clips, LIMITS | {"blur.min": limit})
        assert f" {sum(would)} of 200 clips" in page.locator(".yield").inner_text()
        flipped = [now != kept for now, kept in zip(would, clips["kept"], strict=True)]
        assert_first(page, ids_where(clips, flipped))
        lost = sum(flipped)
        assert page.locator(".change").inner_text() == f"0 gained, {lost} lost against the run"
        chip = page.locator('.chips button[data-label="Would change"] .count')
        assert chip.inner_text() == str(lost)
    page.mouse.up()
    assert set(page.locator(".card .flip").all_inner_texts()) == {"would be rejected"}
    assert page.locator(".offer code").inner_text() == f"blur.min={limit:g}"
    page.get_by_role("button", name="Back to the run").click()
    page.wait_for_timeout(60)
    assert page.locator(".offer").is_hidden()
    assert shown_clips(page)[:3] == clips["clip_id"][:3]
    seen.assert_clean()


def test_the_clips_at_a_limit_are_beside_it(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    type_limit(page, "blur.min", "80")
    strip = page.locator('[data-score="blur"] .border').first
    others = python_decides(clips, LIMITS | {"blur.min": None})
    ranked = sorted((v, i) for i, v in enumerate(clips["score_blur"]) if others[i])
    below = [i for v, i in ranked if v < 80][-3:]
    above = [i for v, i in ranked if v >= 80][:3]
    shown = strip.locator(".rejected .tiny").evaluate_all("all => all.map(b => +b.dataset.clip)")
    assert shown == below
    shown = strip.locator(".kept .tiny").evaluate_all("all => all.map(b => +b.dataset.clip)")
    assert shown == above
    strip.locator(".kept .tiny").first.click()
    assert clips["clip_id"][above[0]] in page.locator("dialog[open]").inner_text()


def test_the_name_of_a_score_sorts_the_clips_by_it(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    panel_of(page, "blur").locator(".sort-by").click()
    rising = np.argsort(clips["score_blur"], kind="stable")
    assert_first(page, [clips["clip_id"][i] for i in rising])
    assert page.locator("#sort").input_value() == "blur"


def test_keys_move_a_limit_and_take_it_away(visit: Visitor, report: Path) -> None:
    page = visit(report).page
    panel_of(page, "blur")
    handle = page.get_by_label("blur: at least")
    handle.focus()
    page.keyboard.press("PageUp")
    page.wait_for_timeout(60)
    moved = float(handle.get_attribute("aria-valuenow") or "nan")
    assert moved > 40
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(60)
    assert 40 < float(handle.get_attribute("aria-valuenow") or "nan") < moved
    page.keyboard.press("Delete")
    page.wait_for_timeout(60)
    assert handle.get_attribute("aria-valuetext") == "no limit"
    assert page.locator(".offer code").inner_text() == "blur.min=null"


def test_limits_are_taken_as_a_command_and_as_yaml(
    visit: Visitor, report: Path, tmp_path: Path
) -> None:
    page = visit(report).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    type_limit(page, "blur.min", "61.5")
    type_limit(page, "dark.min", "")
    type_limit(page, "blur.max", "400")
    page.get_by_role("button", name="Copy command").click()
    page.wait_for_selector("text=Copied")
    folder = str(report.parent.parent).replace("'", "'\\''")
    words = "dark.min=null blur.min=61.5 blur.max=400"
    assert page.evaluate("navigator.clipboard.readText()") == f"vfm refilter '{folder}' {words}"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save YAML").click()
    waiting.value.save_as(tmp_path / "limits.yaml")
    assert waiting.value.suggested_filename == "limits.yaml"
    saved = yaml.safe_load((tmp_path / "limits.yaml").read_text())
    assert saved == {"blur": {"min": 61.5, "max": 400}, "dark": {"min": None}}


def test_no_limit_brings_back_what_no_score_rejected(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(6)
    clips["kept"] = [False] * 6
    clips["reject_reason"] = ["short", "duplicate", "blur", "short", "short", "short"]
    clips["score_blur"] = [10.0, 20.0, 10.0, 20.0, 30.0, 12.0]
    clips["score_luma"] = [90.0] * 6
    clips["valid_motion"] = [False] * 6
    page = visit(write_report(write_folder(tmp_path / "out", clips))).page
    type_limit(page, "blur.min", "5")
    assert " 1 of 6 clips" in page.locator(".yield").inner_text()
    assert page.locator(".change").inner_text() == "1 gained, 0 lost against the run"
    type_limit(page, "blur.min", "")
    assert " 1 of 6 clips" in page.locator(".yield").inner_text()


def test_hand_labels_survive_and_are_saved(
    visit: Visitor, report: Path, clips: dict[str, list], tmp_path: Path
) -> None:
    first = page = visit(report).page
    page.locator('.card[data-place="0"] .thumb').focus()
    page.keyboard.press("k")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("r")
    page.locator('.card[data-place="3"]').hover()
    page.get_by_role("button", name=f"Keep clip {clips['clip_id'][3]}").click()
    page.locator('.card[data-place="4"] .thumb').focus()
    page.keyboard.press("k")
    page.keyboard.press("k")  # Once more takes it back.
    bar = page.locator(".label-bar")
    expect(bar).to_contain_text("3 labelled by hand: 2 to keep, 1 to reject.")
    # The first page stays open: a context without a profile may drop the storage that no page uses.
    page = first.context.new_page()
    page.goto(first.url)
    bar = page.locator(".label-bar")
    expect(bar).to_contain_text("3 labelled by hand")
    page.locator('.chips button[data-label="Labelled by hand"]').click()
    assert shown_clips(page) == [clips["clip_id"][i] for i in (0, 1, 3)]
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save labels").click()
    waiting.value.save_as(tmp_path / "labels.csv")
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    wanted = zip((0, 1, 3), "101", strict=True)
    assert rows == [{"clip_id": clips["clip_id"][i], "keep": keep} for i, keep in wanted]
    page.get_by_role("button", name="Clear", exact=True).click()
    assert page.locator(".label-bar").is_hidden()
    assert page.evaluate("localStorage.length") == 1


def test_cuts_lie_on_the_line_of_their_video(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(12, num_sources=1)
    clips["start_s"] = [i * 10.0 for i in range(12)]
    clips["end_s"] = [i * 10.0 + 8.0 for i in range(12)]
    seen = visit(write_report(write_folder(tmp_path / "out", clips)))
    page = seen.page
    track = page.locator(".track")
    kept = sum(clips["kept"])
    assert f"{kept} of 12 clips kept, 6 min 20 s" in track.inner_text()  # As long as its video.
    svg = track.locator("svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    assert box is not None
    for i, inside in ((0, True), (5, True), (5, False)):
        at = clips["start_s"][i] + (3.0 if inside else 9.0)
        page.mouse.move(box["x"] + at / 380 * box["width"], box["y"] + 12)
        if not inside:
            assert "no clip here" in track.inner_text()
            continue
        assert (clips["reject_reason"][i] or "kept") in track.inner_text()
        page.mouse.down()
        page.mouse.up()
        assert clips["clip_id"][i] in page.locator("dialog[open]").inner_text()
        page.keyboard.press("Escape")
    page.get_by_role("button", name="take_0000.mp4").click()
    assert page.locator("#source").input_value() == "0"
    seen.assert_clean()


def test_fifty_thousand_clips_count_as_python_decides(visit: Visitor, tmp_path: Path) -> None:
    count = 50_000
    clips = clip_table(count, num_sources=400)
    random = np.random.default_rng(0)
    for name in UNITS:
        if f"score_{name}" not in clips:
            # Few digits: many clips stand exactly at a limit.
            clips[f"score_{name}"] = random.lognormal(-2, 1, count).round(2).tolist()
            clips[f"valid_{name}"] = (random.random(count) > 0.1).tolist()
    path = write_report(write_folder(tmp_path / "out", clips))
    seen = visit(path)
    page = seen.page
    page.wait_for_selector(".card")
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    assert path.stat().st_size < 20e6
    lengths = np.subtract(clips["end_s"], clips["start_s"])
    limits: dict[str, Any] = dict(LIMITS)
    tries = [("blur.min", 55.5), ("crushed.max", 0.31), ("freeze.max_s", 0.7), ("blur.min", None)]
    for setting, value in [*tries, ("camera.min", 0.05), ("motion.min", 0.002)]:
        limits[setting] = value
        type_limit(page, setting, "" if value is None else f"{value:g}")
        would = np.array(python_decides(clips, limits))
        gained = int((would & ~np.array(clips["kept"])).sum())
        lost = int((~would & np.array(clips["kept"])).sum())
        said = page.locator(".yield").inner_text()
        assert f" {would.sum():,} of 50,000 clips" in said
        share = float(said.split("%")[0])
        assert share == pytest.approx(100 * lengths[would].sum() / lengths.sum(), abs=0.051)
        said = page.locator(".change").inner_text()
        assert said == f"{gained:,} gained, {lost:,} lost against the run"
    page.locator('.chips button[data-label="All"]').click()
    page.select_option("#sort", "blur")
    by_blur = np.argsort(clips["score_blur"], kind="stable")
    assert_first(page, [clips["clip_id"][i] for i in by_blur])
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    seen.assert_clean()
