"""The curation report in a real browser. Tier: wiring (no process group); needs Chromium."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from playwright.sync_api import Page

from curation.report import write_report
from tests.pages.browser import Visit, Visitor
from tests.pages.samples import HOSTILE, clip_table, write_folder


def shown_clips(page: Page) -> list[str]:
    """Ids of the cards that the document holds, in their order on the sheet."""
    return page.eval_on_selector_all(
        ".card",
        "cards => cards.sort((a, b) => a.dataset.place - b.dataset.place).map(c => c.dataset.clip)",
    )


def wait_for_count(seen: Visit, count: int) -> None:
    """Waits until the sheet says that it holds so many clips."""
    said = "document.querySelector('.shown [role=status]').textContent"
    seen.wait_until(f"{said}.startsWith('{count} clip')")


def assert_first(page: Page, ids: list[str]) -> None:
    """The sheet begins with these clips, and holds as many of them as are in view."""
    shown = shown_clips(page)
    assert shown == ids[: len(shown)]
    assert len(shown) >= min(len(ids), 8)


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
    folder = write_folder(tmp_path / "out", clip_table(300), num_thumbs=300)
    seen = visit(write_report(folder))
    page = seen.page
    page.locator("#browse").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    before = sum(url.endswith(".jpg") for url in seen.requests)
    assert before < 100
    page.locator(".light-table .grid").evaluate("node => { node.scrollTop = node.scrollHeight; }")
    seen.wait_until("document.querySelector('.card[data-place=\"299\"] img')?.naturalWidth > 0")
    assert before < sum(url.endswith(".jpg") for url in seen.requests) < 250
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
        assert page.locator('.shown [role="status"]').inner_text().startswith(f"{len(ids)} clip")
        assert_first(page, ids)


def test_search_source_and_order_work_together(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    seen = visit(report)
    page = seen.page
    page.fill("#search", "HARBOUR rain")
    wanted = ["harbour in slow rain" in caption for caption in clips["caption"]]
    wait_for_count(seen, sum(wanted))
    assert_first(page, ids_where(clips, wanted))

    page.fill("#search", "take_0002.mp4")
    wanted = [source.endswith("take_0002.mp4") for source in clips["source"]]
    wait_for_count(seen, sum(wanted))
    assert_first(page, ids_where(clips, wanted))

    page.fill("#search", "")
    page.select_option("#source", label="take_0003.mp4")
    page.select_option("#sort", "blur")
    rows = [i for i, source in enumerate(clips["source"]) if source.endswith("take_0003.mp4")]
    rising = sorted(rows, key=lambda i: clips["score_blur"][i])
    wait_for_count(seen, len(rows))
    assert_first(page, [clips["clip_id"][i] for i in rising])
    page.get_by_role("button", name="Falling order").click()
    assert_first(page, [clips["clip_id"][i] for i in reversed(rising)])

    page.fill("#search", "no caption says this")
    page.wait_for_selector("text=No clip fits these filters.")


def test_clips_without_a_measure_come_last_in_both_orders(visit: Visitor, tmp_path: Path) -> None:
    clips = clip_table(20)
    clips["valid_motion"] = [i % 4 != 0 for i in range(20)]
    page = visit(write_report(write_folder(tmp_path / "out", clips)), width=1900).page
    missing = [clips["clip_id"][i] for i in range(0, 20, 4)]
    page.select_option("#sort", "motion")
    assert shown_clips(page)[-5:] == missing
    page.get_by_role("button", name="Falling order").click()
    assert shown_clips(page)[-5:] == missing


def test_the_sheet_scrolls_over_all_clips(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    seen = visit(report)
    grid = seen.page.locator(".light-table .grid")
    met: list[str] = []
    for _ in range(60):
        met += [clip for clip in shown_clips(seen.page) if clip not in met]
        if grid.evaluate("node => node.scrollTop + node.clientHeight >= node.scrollHeight - 1"):
            break
        grid.evaluate("node => { node.scrollTop += node.clientHeight * 0.8; }")
        seen.page.wait_for_timeout(40)
    assert met == clips["clip_id"]
    assert seen.page.locator(".card").count() < 60, "cards out of view are let go"
    last = seen.page.locator('.card[data-place="199"]')
    assert last.get_attribute("aria-setsize") == "200"
    assert last.get_attribute("aria-posinset") == "200"


def test_arrow_keys_walk_over_the_sheet(visit: Visitor, report: Path) -> None:
    page = visit(report).page
    page.locator(".card .thumb").first.focus()
    at = "document.activeElement.closest('[data-place]').dataset.place"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(at) == "1"
    page.keyboard.press("ArrowDown")
    columns = int(page.evaluate(at)) - 1
    assert columns >= 2
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    assert page.evaluate(at) == str(1 + 13 * columns)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(at) == str(12 * columns)


def test_details_open_and_close_from_the_keyboard(
    visit: Visitor, report: Path, clips: dict[str, list]
) -> None:
    page = visit(report).page
    button = page.locator('.card[data-place="1"] .thumb')
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
    place = '.card[data-place="{}"]'
    for i, said in enumerate(HOSTILE):
        assert page.locator(f"{place.format(i)} .caption").text_content() == said
        assert page.locator(f"{place.format(i)} .badge .untrusted").text_content() == said
    tracks = page.locator(".track-name").evaluate_all("all => all.map(t => t.title)")
    assert sorted(tracks) == sorted(f"{said}.mp4" for said in HOSTILE)
    page.locator(".histogram").last.scroll_into_view_if_needed()
    page.wait_for_selector(".histogram .chart")
    commands = page.locator("#failures code").evaluate_all("all => all.map(c => c.textContent)")
    assert commands == [f"vfm curate '{said}'" for said in HOSTILE]
    for i in range(len(HOSTILE)):
        page.locator(f"{place.format(i)} .thumb").click()
        assert page.locator("dialog .caption").text_content() == HOSTILE[i]
        page.keyboard.press("Escape")
    page.fill("#search", HOSTILE[1])
    page.wait_for_timeout(200)
    assert page.locator(".card").count() == 1
    assert page.locator("img:not([src^=thumbs])").count() == 0
    assert page.locator("script").count() == 5  # Four data blocks and the page's own.
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


@pytest.mark.parametrize("count", [0, 2])
def test_a_table_with_little_in_it_is_a_page_too(
    visit: Visitor, tmp_path: Path, count: int
) -> None:
    few = {"clip_id": ["a", "b"], "kept": [True, False], "reject_reason": [None, "blur"]}
    kinds = {"clip_id": "string", "kept": "bool", "reject_reason": "string"}
    columns = {name: pyarrow.array(few[name][:count], kind) for name, kind in kinds.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "clips.parquet")
    seen = visit(write_report(tmp_path))
    assert shown_clips(seen.page) == few["clip_id"][:count]
    body = seen.page.inner_text("main")
    assert "No scores were measured." in body if count else "This folder has no clips." in body
    assert "No times of clips were written." in body
    seen.assert_clean()


def test_the_stages_of_a_run_are_drawn_over_its_time(visit: Visitor, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "out", clip_table(20))
    lines = [
        {
            "at_s": float(second),
            "left_s": None,
            "gpus_busy": None,
            "steps": {name: {"busy": second % 3, "queue": second} for name in ("scene", "caption")},
        }
        for second in range(30)
    ]
    lines.append({"at_s": 3.0, "decision": f"caption: {HOSTILE[0]}", "reason": HOSTILE[1]})
    path = folder / "report" / "engine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = visit(write_report(folder))
    page = seen.page
    for chart in ("#workers-chart", "#queues-chart"):
        assert page.locator(f"{chart} svg.line-chart path.line").count() >= 2
    assert page.locator("#gpus-chart").count() == 0, "no GPU was there"
    page.locator("#queues-chart svg.line-chart").focus()
    page.keyboard.press("End")
    said = page.inner_text("#queues-chart .readout")
    assert "scene 29" in said
    assert "caption 29" in said
    page.locator("#stages summary").click()
    assert HOSTILE[0] in page.inner_text("#stages details")
    seen.assert_clean()
