"""What the page says and offers is what `vfm refilter` then does, on a folder that was curated.

Tier: wiring (no process group); needs Chromium. Footage is made here.
"""

import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page

from cli.main import main
from tests.curation import footage
from tests.pages.browser import Visit, Visitor
from tests.pages.test_report_limits import panel_of, type_limit

SPEEDS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, step_px in enumerate(SPEEDS):
        frames = footage.shot(seed, 30, size=(256, 144), step_px=step_px)
        footage.write(tmp_path / "in" / f"{seed}.mp4", frames)
    folder = tmp_path / "it's $HOME"
    words = [f"input={tmp_path / 'in'}", f"output={folder}", "blur.min=null", "encode=false"]
    assert main(["curate", *words]) == 0
    return folder


def opened(visit: Visitor, folder: Path) -> Visit:
    seen = visit(folder / "report" / "index.html")
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return seen


def kept_of(folder: Path) -> set[str]:
    rows = pq.read_table(folder / "clips.parquet", columns=["clip_id", "kept"]).to_pylist()
    return {row["clip_id"] for row in rows if row["kept"]}


def run_copied(page: Page, button: str, folder: Path) -> None:
    """Runs the command that a button of the page copies, as a shell would take it."""
    page.get_by_role("button", name=button).click()
    page.wait_for_selector("text=Copied")
    program, *words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert program == "vfm" and words[1] == str(folder)
    assert main(words) == 0


def yield_of(page: Page) -> str:
    page.wait_for_selector(".yield b")
    return page.locator(".yield").inner_text()


def test_the_command_keeps_what_the_page_said(visit: Visitor, folder: Path) -> None:
    page = opened(visit, folder).page
    speeds = pq.read_table(folder / "clips.parquet")["score_motion"].to_pylist()
    limit = float(f"{sorted(speeds)[3] - 1e-6:.6f}")
    type_limit(page, "motion.min", str(limit))
    type_limit(page, "bright.max", "")
    said = yield_of(page)
    assert " 3 of 6 clips" in said
    run_copied(page, "Copy command", folder)
    assert len(kept_of(folder)) == 3
    # The page of the new decision says the same, and that nothing differs from it.
    again = opened(visit, folder).page
    assert yield_of(again) == said
    assert again.locator(".change").inner_text() == "as the run decided"


def test_after_a_yield_all_limits_are_taken_along(visit: Visitor, folder: Path) -> None:
    assert main(["refilter", str(folder), "target_yield=0.5"]) == 0
    assert len(kept_of(folder)) == 3
    page = opened(visit, folder).page
    panel_of(page, "luma")
    type_limit(page, "blur.max", "1000")  # Rejects none, so the others must hold.
    assert " 3 of 6 clips" in yield_of(page)
    before = kept_of(folder)
    run_copied(page, "Copy command", folder)
    assert kept_of(folder) == before
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["decided_by"] is None and summary["thresholds"]["blur"]["max"] == 1000


def test_labels_of_the_page_are_reproduced(
    visit: Visitor, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(visit, folder).page
    table = pq.read_table(folder / "clips.parquet").to_pylist()
    ranked = sorted(table, key=lambda row: row["score_motion"])
    for row, key in ((ranked[0], "r"), (ranked[1], "r"), (ranked[5], "k")):
        page.locator(f'.card[data-clip="{row["clip_id"]}"] .thumb').focus()
        page.keyboard.press(key)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save labels").click()
    monkeypatch.chdir(tmp_path)
    waiting.value.save_as(tmp_path / "labels.csv")
    run_copied(page, "Copy command that fits", folder)
    kept = kept_of(folder)
    assert ranked[5]["clip_id"] in kept
    assert not {ranked[0]["clip_id"], ranked[1]["clip_id"]} & kept
    page.evaluate("localStorage.clear()")
