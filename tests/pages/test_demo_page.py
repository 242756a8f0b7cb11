"""The page of a first run in a real browser. Tier: wiring (no process group); needs Chromium."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.demo.page import DemoPage, checks, write_demo_page
from tests.pages.browser import Visitor
from tests.pages.samples import HOSTILE, demo

MOVING = "[...document.querySelectorAll('#examples video')].slice(0, 4)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> DemoPage:
    return demo(tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, run: DemoPage) -> Path:
    return write_demo_page(tmp_path_factory.mktemp("page") / "index.html", run)


def test_it_is_one_file_that_asks_nobody(visit: Visitor, story: Path) -> None:
    seen = visit(story)
    assert story.parent.joinpath("index.html").exists()
    assert list(story.parent.iterdir()) == [story]
    seen.page.wait_for_timeout(300)
    seen.assert_clean()
    assert [url for url in seen.requests if url.startswith("file:")] == [story.as_uri()]
    assert seen.page.locator("#clips img").evaluate_all("all => all.every(i => i.complete)")


def test_every_video_plays_and_a_row_keeps_together(visit: Visitor, story: Path) -> None:
    seen = visit(story)
    page = seen.page
    page.locator(".example").first.scroll_into_view_if_needed()
    seen.wait_until(f"{MOVING}.every(v => v.currentTime > 0.3)")
    sizes = page.evaluate(f"{MOVING}.map(v => [v.videoWidth, v.videoHeight, v.muted, v.loop])")
    assert sizes == [[170, 96, True, True]] * 4
    worst = page.evaluate(
        f"""async () => {{
          let worst = 0;
          for (let i = 0; i < 12; i += 1) {{
            await new Promise((done) => setTimeout(done, 100));
            const times = {MOVING}.map(v => v.currentTime);
            const gap = Math.max(...times) - Math.min(...times);
            worst = Math.max(worst, Math.min(gap, 2 - gap));  // Two seconds long, and looped.
          }}
          return worst;
        }}"""
    )
    assert worst < 0.35
    page.evaluate(f"{MOVING}[2].currentTime = ({MOVING}[0].currentTime + 1) % 2")
    apart = f"Math.abs({MOVING}[2].currentTime - {MOVING}[0].currentTime)"
    seen.wait_until(f"!{MOVING}[2].seeking && {apart} < 0.1", timeout_s=5)
    seen.assert_clean()


def test_a_row_out_of_sight_rests(visit: Visitor, story: Path) -> None:
    page = visit(story).page
    page.wait_for_timeout(200)
    assert page.evaluate(f"{MOVING}.every(v => v.paused)")


def test_pause_and_play(visit: Visitor, story: Path) -> None:
    seen = visit(story)
    page = seen.page
    row = page.locator(".example").first
    row.scroll_into_view_if_needed()
    seen.wait_until(f"{MOVING}.every(v => !v.paused && v.currentTime > 0)")
    button = row.get_by_role("button")
    assert button.inner_text() == "Pause"
    button.click()
    seen.wait_until(f"{MOVING}.every(v => v.paused)")
    page.wait_for_timeout(150)
    before = page.evaluate(f"{MOVING}.map(v => v.currentTime)")
    page.wait_for_timeout(250)
    assert page.evaluate(f"{MOVING}.map(v => v.currentTime)") == before
    button.press("Enter")
    seen.wait_until(f"{MOVING}.every(v => !v.paused)")


def test_nothing_moves_for_those_who_asked_for_stillness(visit: Visitor, story: Path) -> None:
    seen = visit(story, still=True)
    page = seen.page
    row = page.locator(".example").first
    row.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert page.evaluate(f"{MOVING}.every(v => v.paused && v.currentTime === 0)")
    row.get_by_role("button", name="Play").click()
    seen.wait_until(f"{MOVING}.every(v => v.currentTime > 0.1)")


def test_the_divider_uncovers_the_real_video(visit: Visitor, story: Path) -> None:
    seen = visit(story)
    page = seen.page
    page.locator("#wipe").scroll_into_view_if_needed()
    seen.wait_until("[...document.querySelectorAll('.stage video')].every(v => v.videoWidth > 0)")
    page.locator("#wipe").focus()
    page.keyboard.press("End")
    assert "100%" in page.locator(".over").evaluate("v => v.style.clipPath")


def test_a_table_holds_the_tokenizer_against_others(visit: Visitor, story: Path) -> None:
    rows = visit(story).page.locator("#tokenizer tbody tr")
    assert [row.split() for row in rows.all_inner_texts()] == [
        ["This", "tokenizer", "32.4", "0.921"],
        ["3D", "DCT", "30.1", "0.887"],
    ]


def test_filters_show_the_clips_of_a_reason(visit: Visitor, story: Path, run: DemoPage) -> None:
    page = visit(story).page
    chips = page.locator("#clip-filters button")
    for i in range(chips.count()):
        chip = chips.nth(i)
        chip.click()
        label = chip.get_attribute("data-label") or ""
        wanted = sum(
            label == "all"
            or (label == "kept" and clip.kept)
            or (not clip.kept and label in ("rejected", clip.reject_reason))
            for clip in run.clips
        )
        assert page.locator("#clips .card:visible").count() == wanted > 0
        assert chip.locator(".count").inner_text() == str(wanted)


def test_the_curve_is_drawn_from_the_data_and_can_be_read(
    visit: Visitor, story: Path, run: DemoPage
) -> None:
    page = visit(story).page
    chart = page.locator("#loss-chart svg.line-chart")
    raw = chart.locator("path.raw").get_attribute("d") or ""
    assert len(re.findall(r"[ML]", raw)) == len(run.loss)
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", raw)]
    largest = max(range(len(run.loss)), key=lambda i: run.loss[i].loss)
    assert heights.index(min(heights)) == largest, "the largest loss is drawn highest"
    chart.focus()
    page.keyboard.press("End")
    said = page.locator("#loss-chart .readout").inner_text()
    assert "step 400" in said
    assert f"validation {run.val[-1].loss:.3g}" in said
    page.keyboard.press("Home")
    assert (
        f"training, each step {run.loss[0].loss:.3g}"
        in page.locator("#loss-chart .readout").inner_text()
    )
    switch = page.locator("#loss-chart").get_by_role("button", name="Logarithmic")
    switch.click()
    assert switch.get_attribute("aria-pressed") == "true"
    redrawn = chart.locator("path.raw").get_attribute("d") or ""
    assert redrawn != raw and "NaN" not in redrawn
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    assert "step 1" in page.locator("#loss-chart .readout").inner_text()
    assert page.locator("#sigma-chart svg.line-chart path.line").count() == 4


def test_the_table_behind_the_curve_holds_every_validation(
    visit: Visitor, story: Path, run: DemoPage
) -> None:
    page = visit(story).page
    page.get_by_text("Loss as a table").click()
    rows = page.locator("#training details").first.locator("tbody tr")
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    found = {int(cell[0].replace(",", "")): cell[2] for cell in cells if cell[2].strip()}
    assert {step: float(value) for step, value in found.items()} == {
        point.step: pytest.approx(point.loss, rel=1e-3) for point in run.val
    }
    assert sum(bool(cell[1].strip()) for cell in cells) >= 40


def test_the_heat_map_marks_the_nearest_and_the_own_clip(visit: Visitor, story: Path) -> None:
    page = visit(story).page
    where = """(kind) => [...document.querySelectorAll('.heat tbody tr')].map(
      row => [...row.querySelectorAll('td')].findIndex(cell => cell.classList.contains(kind)))"""
    assert page.evaluate(where, "own") == [0, 1, 2, 3, 4, 5]
    assert page.evaluate(where, "nearest") == [0, 1, 4, 3, 4, 5]


def test_the_first_paragraph_says_whether_the_checks_passed(
    visit: Visitor, story: Path, run: DemoPage, tmp_path: Path
) -> None:
    assert run.learning is not None
    page = visit(story).page
    assert "All of its 2 checks passed." in page.inner_text(".lede")
    assert page.locator(".verdict").all_inner_texts() == ["passed", "passed"]
    worse = replace(run.learning, last_val_loss=2.0, matched=1, shuffled_matched=1)
    failed = replace(run, learning=worse)
    page = visit(write_demo_page(tmp_path / "failed.html", failed)).page
    assert "2 of its 2 checks failed." in page.inner_text(".lede")
    assert page.locator(".verdict").all_inner_texts() == ["failed", "failed"]


@pytest.mark.parametrize(
    ("first", "last", "matched", "shuffled", "passed"),
    [
        (1.0, 0.5, 5, 1, [True, True]),
        (1.0, 0.51, 5, 1, [False, True]),
        (1.0, float("nan"), 5, 1, [False, True]),
        (1.0, 0.5, 4, 0, [True, False]),  # Two of three are fewer than three of four.
        (1.0, 0.5, 5, 3, [True, False]),  # Exchanged captions do too well.
    ],
)
def test_checks_hold_only_when_captions_matter(
    run: DemoPage, first: float, last: float, matched: int, shuffled: int, passed: list[bool]
) -> None:
    assert run.learning is not None
    learning = replace(
        run.learning,
        first_val_loss=first,
        last_val_loss=last,
        matched=matched,
        shuffled_matched=shuffled,
    )
    assert [check.passed for check in checks(learning)] == passed


def test_missing_pieces_leave_a_sentence(visit: Visitor, run: DemoPage, tmp_path: Path) -> None:
    bare = replace(
        run,
        clips=[],
        loss=[],
        val=[],
        learning=None,
        tokenizer=None,
        examples=[],
        settings={},
        machine={},
        wall_s={},
    )
    seen = visit(write_demo_page(tmp_path / "bare.html", bare))
    for section in seen.page.locator("main > section").all():
        assert len(section.inner_text()) > 30
    assert "was not measured" in seen.page.inner_text(".lede")
    seen.assert_clean()

    silent = [replace(clip, caption="", thumbnail=None, scores={}) for clip in run.clips]
    example = replace(run.examples[0], caption="", shuffled=None)
    few = replace(run, clips=silent, val=[], examples=[example], loss=run.loss[:1])
    seen = visit(write_demo_page(tmp_path / "few.html", few))
    assert "This clip has no caption." in seen.page.inner_text("#examples")
    assert seen.page.locator("#examples video").count() == 3
    assert "Validation was not run." in seen.page.inner_text("#training")
    seen.assert_clean()


def test_hostile_text_is_shown_and_never_run(visit: Visitor, run: DemoPage, tmp_path: Path) -> None:
    assert run.learning is not None and run.tokenizer is not None
    clips = [
        replace(run.clips[i], caption=said, source=said, label=said, kept=False, reject_reason=said)
        for i, said in enumerate(HOSTILE)
    ]
    labels = list(HOSTILE[: len(run.learning.distances)])
    learning = replace(run.learning, row_labels=labels, column_labels=labels, note=HOSTILE[0])
    attacked = replace(
        run,
        title=HOSTILE[0],
        clips=clips,
        learning=learning,
        tokenizer=replace(run.tokenizer, compression=HOSTILE[1], how=HOSTILE[1]),
        examples=[replace(run.examples[0], caption=HOSTILE[3], clip_label=HOSTILE[2])],
        settings={HOSTILE[1]: {HOSTILE[0]: HOSTILE[1], "nested": {HOSTILE[2]: [HOSTILE[1]]}}},
        machine={HOSTILE[0]: HOSTILE[1]},
        wall_s={HOSTILE[1]: 1.0},
    )
    seen = visit(write_demo_page(tmp_path / "index.html", attacked))
    page = seen.page
    assert page.locator("h1").text_content() == HOSTILE[0]
    captions = page.locator("#clips .caption").evaluate_all("all => all.map(c => c.textContent)")
    assert captions == list(HOSTILE)
    assert page.locator("blockquote").text_content() == HOSTILE[3]
    for chip in page.locator("#clip-filters button").all():
        chip.click()
    page.wait_for_timeout(200)
    assert page.locator("script").count() == 2
    assert page.locator('img:not([src^="data:image/jpeg"])').count() == 0
    seen.assert_clean()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_windows_do_not_scroll_sideways(visit: Visitor, story: Path, width: int) -> None:
    page = visit(story, width=width).page
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text_px = page.locator("#loss-chart text").first.evaluate(
        "t => t.getBoundingClientRect().height"
    )
    assert text_px > 10, "the chart is drawn for its width, not shrunk"
