"""A person's visit to a page, and a record of everything the page did."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Dialog, Page


@dataclass(kw_only=True)
class Visit:
    """An open page and everything it must not have done."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def wait_until(self, expression: str, *, timeout_s: float = 10.0) -> None:
        """Waits for a JavaScript expression. `page.wait_for_function` needs `eval` inside the
        page, which the page's own policy forbids."""
        end = time.monotonic() + timeout_s
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"not within {timeout_s} s: {expression}"
            self.page.wait_for_timeout(30)

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
        page.set_default_timeout(10_000)

        def complain(kind: str, said: str) -> None:
            visit.complaints.append(f"{kind}: {said}")

        def refuse(dialog: Dialog) -> None:
            complain("dialog", dialog.message)
            dialog.dismiss()

        page.on("console", lambda m: complain("console", m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: complain("error", str(error)))
        page.on("dialog", refuse)
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("requestfailed", lambda request: complain("failed request", request.url[:200]))
        page.goto(path.as_uri())
        return visit

    def close(self) -> None:
        for context in self._contexts:
            context.close()
