"""A real browser for the page tests, and sample folders made on the spot.

Tier: wiring (no process group). Skipped where no Chromium is installed.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="the page tests drive a browser with `playwright`")

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser on PATH (looked for {', '.join(BROWSERS)})")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield started
        started.close()


@dataclass(kw_only=True)
class Visit:
    """An open page and everything it must not have done."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        """No console error, no dialog, no request but the page's own files, nothing run."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
        assert self.page.evaluate("window.__pwned") is None


class Visitor:
    """Opens pages from the disk, as a person would."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(
        self, path: Path, *, width: int = 1280, dark: bool = False, still: bool = False
    ) -> Visit:
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
        )
        self._contexts.append(context)
        visit = Visit(page=context.new_page())
        page = visit.page

        def complain(kind: str, said: str) -> None:
            visit.complaints.append(f"{kind}: {said}")

        page.on("console", lambda m: complain("console", m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: complain("error", str(error)))
        page.on("dialog", lambda dialog: (complain("dialog", dialog.message), dialog.dismiss()))
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("requestfailed", lambda request: complain("failed request", request.url[:200]))
        page.goto(path.as_uri())
        return visit

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    visitor.close()
