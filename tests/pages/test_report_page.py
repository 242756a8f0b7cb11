"""The curation report in a real browser. Tier: wiring (no process group); needs Chromium."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from curation.report import write_report
from curation.scores import UNITS
from tests.pages.browser import Visitor
from tests.pages.samples import HOSTILE, clip_table, write_folder

PER_PAGE = 60


def shown_clips(page: Page) -> list[str]:
    return page.eval_on_selector_all(".card", "cards => cards.map(card => card.dataset.clip)")


@pytest.fixture(scope="module")
def clips() -> dict[str, list]:
    return clip_table(200)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, clips: dict[str, list]) -> Path:
    folder = tmp_path_factory.mktemp("report") / "out"
    failures = [{"id": "v9", "stage": "probe", "reason": "no_moov", "command": "vfm curate x"}]
    return write_report(write_folder(folder, clips, failures=failures))


def ids_where(clips: dict[str, list], wanted: list[bool]) -> list[str]:
    return [clip_id for clip_id, want in zip(clips["clip_id"], wanted, strict=True) if want]


def test_it_opens_from_the_disk_and_asks_nobody(visit: Visitor, report: Path) -> None:
    seen = visit(report)
    page = seen.page
    seen.wait_until("document.querySelector('.card img')?.naturalWidth > 0")
    seen.assert_clean()
    fetched = [url for url in seen.requests if url.endswith(".jpg")]
    assert fetched, "thumbnails are files beside the page"
    assert all("/report/thumbs/" in url for url in fetched)
    assert "kept" in page.inner_text("h1")
    assert page.locator("#failures code").inner_text() == "vfm curate x"


def test_thumbnails_are_loaded_as_they_come_near(visit: Visitor, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", clip_table(60), num_thumbs=60)
    seen = visit(write_report(folder), width=390)  # One clip per row: a very long page.
    seen.page.wait_for_timeout(300)
    before = sum(url.endswith(".jpg") for url in seen.requests)
    assert before < 40
    last = seen.page.locator(".card img").last
    last.scroll_into_view_if_needed()
    seen.wait_until("[...document.querySelectorAll('.card img')].at(-1).naturalWidth > 0")
    assert sum(url.endswith(".jpg") for url in seen.requests) > before
    seen.assert_clean()


def test_filters_show_exactly_the_clips_of_a_reason(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    expected = {
        "All": clips["clip_id"],
        "Kept": ids_where(clips, clips["kept"]),
        "All rejected": ids_where(clips, [not kept for kept in clips["kept"]]),
        "blur": ids_where(clips, [reason == "blur" for reason in clips["reject_reason"]]),
        "low_motion": ids_where(clips, [r == "low_motion" for r in clips["reject_reason"]]),
    }
    for label, ids in expected.items():
        chip = page.locator(f'.chips button[data-label="{label}"]')
        chip.click()
        assert chip.get_attribute("aria-pressed") == "true"
        assert page.locator('.chips button[aria-pressed="true"]').count() == 1
        assert chip.locator(".count").inner_text() == str(len(ids))
        assert page.locator('#browse [role="status"]').inner_text().startswith(f"{len(ids)} clip")
        assert shown_clips(page) == ids[:PER_PAGE]


def test_search_source_and_order_work_together(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    seen = visit(report)
    page = seen.page
    page.fill("#search", "HARBOUR rain")
    wanted = ["harbour in slow rain" in caption for caption in clips["caption"]]
    seen.wait_until(
        f"document.querySelector('[role=status]').textContent.startsWith('{sum(wanted)} clip')"
    )
    assert shown_clips(page) == ids_where(clips, wanted)

    page.fill("#search", "take_0002.mp4")
    wanted = [source.endswith("take_0002.mp4") for source in clips["source"]]
    seen.wait_until(
        f"document.querySelector('[role=status]').textContent.startsWith('{sum(wanted)} clip')"
    )
    assert shown_clips(page) == ids_where(clips, wanted)

    page.fill("#search", "")
    page.select_option("#source", label="take_0003.mp4")
    page.select_option("#sort", "blur")
    rows = [i for i, source in enumerate(clips["source"]) if source.endswith("take_0003.mp4")]
    rising = sorted(rows, key=lambda i: clips["score_blur"][i])
    seen.wait_until(
        f"document.querySelector('[role=status]').textContent.startsWith('{len(rows)} clip')"
    )
    assert shown_clips(page) == [clips["clip_id"][i] for i in rising]
    page.get_by_role("button", name="Falling order").click()
    assert shown_clips(page) == [clips["clip_id"][i] for i in reversed(rising)]

    page.fill("#search", "no caption says this")
    page.wait_for_selector("text=No clip fits these filters.")


def test_clips_without_a_measure_come_last_in_both_orders(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(50)
    clips["valid_motion"] = [i % 10 != 0 for i in range(50)]
    page = visit(write_report(write_folder(tmp_path / "out", clips))).page
    missing = [clips["clip_id"][i] for i in range(0, 50, 10)]
    page.select_option("#sort", "motion")
    assert shown_clips(page)[-5:] == missing
    page.get_by_role("button", name="Falling order").click()
    assert shown_clips(page)[-5:] == missing


def test_pages_of_clips_are_turned_with_either_pager(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    pagers = page.locator("#browse nav.pager")
    pagers.first.get_by_role("button", name="Next").click()
    assert shown_clips(page) == clips["clip_id"][PER_PAGE : 2 * PER_PAGE]
    pagers.last.get_by_role("button", name="Next").click()
    assert shown_clips(page) == clips["clip_id"][2 * PER_PAGE : 3 * PER_PAGE]
    assert pagers.all_inner_texts()[0] == pagers.all_inner_texts()[1]
    assert "3 of 4" in pagers.first.inner_text()
    pagers.first.get_by_role("button", name="Next").click()
    assert shown_clips(page) == clips["clip_id"][3 * PER_PAGE :]
    assert pagers.first.get_by_role("button", name="Next").is_disabled()


def test_details_open_and_close_from_the_keyboard(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    button = page.locator(".card .thumb").nth(1)
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    said = dialog.inner_text()
    assert clips["clip_id"][1] in said
    assert clips["source"][1] in said
    assert clips["caption"][1] in said
    dialog.get_by_role("button", name="Next clip").click()
    assert clips["clip_id"][2] in page.locator("dialog[open]").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert button.evaluate("node => node === document.activeElement")


def test_histograms_count_every_measured_clip_and_mark_the_limits(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    panels = page.locator(".histogram")
    assert panels.locator("h3").all_inner_texts() == ["blur", "motion", "luma"]
    missing = clips["valid_motion"].count(False)
    assert f"{200 - missing} clips measured, {missing} without" in panels.nth(1).inner_text()
    assert panels.locator("line.limit").count() == 3
    assert panels.first.locator(".limit-label").text_content() == "at least 40"
    for panel in panels.all():
        limit = float(panel.locator("line.limit").get_attribute("x1") or "nan")
        kept = panel.locator(".kept-bar").evaluate_all(
            "bars => bars.map(b => +b.getAttribute('x'))"
        )
        wide = 392 / 40
        assert min(kept) > limit - wide, "no kept clip lies below a lower limit"


def test_another_limit_shows_what_would_change(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    seen = visit(report)
    page = seen.page
    assert page.locator(".trial").is_hidden()
    slider = page.get_by_label("blur: at least")

    def move_to(limit: float) -> None:
        slider.evaluate(
            "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')); }", limit
        )

    others = [
        (not valid or motion >= 0.004) and luma >= 20
        for motion, valid, luma in zip(
            clips["score_motion"], clips["valid_motion"], clips["score_luma"], strict=True
        )
    ]
    for limit in (90.0, 20.0):
        move_to(limit)
        would = [
            fine and blur >= limit for fine, blur in zip(others, clips["score_blur"], strict=True)
        ]
        said = page.locator(".trial p").inner_text()
        assert said.startswith(f"{sum(would)} of 200 clips would be kept")
        assert page.locator(".trial code").inner_text() == f"blur.min={limit:g}"
        page.get_by_role("button", name="Show these clips").click()
        flipped = [now != kept for now, kept in zip(would, clips["kept"], strict=True)]
        assert any(flipped)
        assert shown_clips(page) == ids_where(clips, flipped)[:PER_PAGE]
        note = "would be kept" if limit < 40 else "would be rejected"
        assert set(page.locator(".card .flip").all_inner_texts()) == {note}

    page.get_by_label("luma: at least").evaluate(
        "node => { node.value = 33; node.dispatchEvent(new Event('input')); }"
    )
    assert page.locator(".trial code").inner_text() == "blur.min=20 dark.min=33"
    page.get_by_role("button", name="Back to the run").click()
    assert page.locator(".trial").is_hidden()
    assert page.locator(".histogram .limit-label").first.text_content() == "at least 40"
    assert shown_clips(page) == clips["clip_id"][:PER_PAGE]
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".trial").is_visible()
    seen.assert_clean()


def test_no_limit_brings_back_what_no_score_rejected(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(6)
    clips["kept"] = [False] * 6
    clips["reject_reason"] = ["short", "duplicate", "blur", "short", "short", "short"]
    clips["score_blur"] = [10.0] * 6
    clips["score_luma"] = [90.0] * 6
    clips["valid_motion"] = [False] * 6
    page = visit(write_report(write_folder(tmp_path / "out", clips))).page
    page.get_by_label("blur: at least").evaluate(
        "node => { node.value = 5; node.dispatchEvent(new Event('input')); }"
    )
    said = page.locator(".trial p").inner_text()
    assert said == "1 of 6 clips would be kept instead of 0: 1 gained, 0 lost."


def test_hostile_names_and_captions_are_shown_and_never_run(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(len(HOSTILE))
    clips["caption"] = list(HOSTILE)
    clips["source"] = [f"{said}.mp4" for said in HOSTILE]
    clips["kept"] = [False] * len(HOSTILE)
    clips["reject_reason"] = list(HOSTILE)
    clips["bucket"] = list(HOSTILE)
    clips["score_<img src=x onerror=alert(3)>"] = [0.5] * len(HOSTILE)
    failures = [{"id": said, "reason": said, "command": f"vfm curate '{said}'"} for said in HOSTILE]
    folder = write_folder(tmp_path / "<b>out&", clips, failures=failures)
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace("Bottleneck:", "<img src=x onerror=alert(4)>"))
    seen = visit(write_report(folder))
    page = seen.page
    captions = page.locator(".card .caption").evaluate_all("all => all.map(c => c.textContent)")
    assert captions == list(HOSTILE)
    commands = page.locator("#failures code").evaluate_all("all => all.map(c => c.textContent)")
    assert commands == [f"vfm curate '{said}'" for said in HOSTILE]
    for i in range(len(HOSTILE)):
        page.locator(".card .thumb").nth(i).click()
        assert page.locator("dialog .caption").text_content() == HOSTILE[i]
        page.keyboard.press("Escape")
    page.fill("#search", HOSTILE[1])
    page.wait_for_timeout(200)
    assert page.locator(".card").count() == 1
    assert page.locator("img:not([src^=thumbs])").count() == 0
    assert page.locator("script").count() == 3  # Two data blocks and the page's own.
    seen.assert_clean()


def test_markup_that_slipped_through_would_still_be_dead(visit: Visitor, report: Path) -> None:
    """The policy alone stops inline handlers, scripts and requests, whatever puts them there."""
    seen = visit(report)
    seen.page.evaluate(
        """() => {
          const attack = document.createElement("div");
          attack.innerHTML = '<img src="data:," onerror="window.__pwned=1">' +
            '<img src="https://example.invalid/x.png"><iframe srcdoc="<script>top.__pwned=1<' +
            '/script>"></iframe>';
          const script = document.createElement("script");
          script.textContent = "window.__pwned=1";
          document.body.append(attack, script);
        }"""
    )
    seen.page.wait_for_timeout(300)
    assert seen.page.evaluate("window.__pwned") is None
    assert any("Content Security Policy" in said for said in seen.complaints)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_windows_do_not_scroll_sideways(visit: Visitor, tmp_path: Path, width: int) -> None:
    clips = clip_table(30)
    clips["source"][0] = "folder/" + "very_long_name_without_a_break" * 8 + ".mp4"
    clips["caption"][1] = "W" * 400
    failures = [{"id": "v" * 90, "reason": "no_moov", "command": "vfm curate " + "x" * 300}]
    folder = write_folder(tmp_path / "out", clips, failures=failures)
    page = visit(write_report(folder), width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".card .thumb").first.click()
    box = page.locator("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_fifty_thousand_clips_stay_usable(
    visit: Visitor, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    clips = clip_table(50_000, num_sources=400)
    random = np.random.default_rng(0)
    for name in UNITS:
        if f"score_{name}" not in clips:
            clips[f"score_{name}"] = random.lognormal(-2, 1, 50_000).round(6).tolist()
            clips[f"valid_{name}"] = [True] * 50_000
    path = write_report(write_folder(tmp_path / "out", clips))
    seen = visit(path)
    page = seen.page
    page.wait_for_selector(".card")
    figures = page.evaluate(
        """() => {
          const timed = (act) => {
            const start = performance.now();
            act();
            document.body.offsetHeight;  // Lays out, as the next frame would.
            return performance.now() - start;
          };
          const chip = (name) => document.querySelector(`.chips button[data-label="${name}"]`);
          const sort = document.querySelector("#sort");
          return {
            interactive_ms: performance.getEntriesByType("navigation")[0].domInteractive,
            filter_ms: timed(() => chip("blur").click()),
            all_ms: timed(() => chip("All").click()),
            sort_ms: timed(() => {
              sort.value = "blur";
              sort.dispatchEvent(new Event("change"));
            }),
            slide_ms: timed(() => {
              const slider = document.querySelector("#scores input[type=range]");
              slider.value = 60;
              slider.dispatchEvent(new Event("input"));
            }),
            nodes: document.querySelectorAll("*").length,
          };
        }"""
    )
    figures["megabytes"] = path.stat().st_size / 1e6
    for name, value in figures.items():
        record_property(name, value)
    print("50,000 clips:", {name: round(value, 1) for name, value in figures.items()})
    assert figures["nodes"] < 6000, "the page builds what is in view, not every clip"
    assert figures["megabytes"] < 20
    blurred = ids_where(clips, [reason == "blur" for reason in clips["reject_reason"]])
    page.get_by_role("button", name="Back to the run").click()
    page.locator('.chips button[data-label="blur"]').click()
    shown = shown_clips(page)
    assert len(shown) == PER_PAGE
    by_blur = dict(zip(clips["clip_id"], clips["score_blur"], strict=True))
    assert shown == sorted(blurred, key=lambda clip_id: float(f"{by_blur[clip_id]:.5g}"))[:PER_PAGE]
    seen.assert_clean()


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(visit: Visitor, report: Path, dark: bool) -> None:
    """WCAG 2.2 contrast of the palette's text colours on every ground they are used on."""
    page = visit(report, dark=dark).page
    colours = page.evaluate(
        """(names) => {
          const probe = document.body.appendChild(document.createElement("i"));
          const read = (name) => {
            probe.style.color = `var(--${name})`;
            return getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
          };
          return Object.fromEntries(names.map((name) => [name, read(name)]));
        }""",
        [
            "ink",
            "muted",
            "accent",
            "bad",
            "paper",
            "surface",
            "bad-soft",
            "accent-soft",
            "line-strong",
        ],
    )

    def luminance(rgb: list[float]) -> float:
        parts = [c / 255 for c in rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted([luminance(colours[one]), luminance(colours[other])])
        return (high + 0.05) / (low + 0.05)

    for ground in ("paper", "surface"):
        assert contrast("ink", ground) > 12
        for name in ("muted", "accent", "bad"):
            assert contrast(name, ground) >= 4.5, (name, ground)
        assert contrast("line-strong", ground) >= 3  # Borders of controls.
    assert contrast("bad", "bad-soft") >= 4.5
    assert contrast("accent", "accent-soft") >= 4.5
