"""Drive the system's Chromium by Playwright, and check pages with axe-core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from benchmarks.web_browser import ARGUMENTS, CHROMIUM, IS_SETTLED
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

WAIT_MS = HANG_S * 1000
"""Longest wait for anything on a page, far longer than a loaded machine needs."""

_BAD = ("warning", "error")

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
DESKTOP, PHONE = (1280, 800), (390, 844)
"""Width and height of a window in CSS pixels."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless browser; without Chromium the test is skipped, or fails if ``CI`` is set.

    Playwright's loop belongs to the thread that started it, so end one browser before the next starts.
    """
    if (
        find_spec("playwright") is None
        or find_spec("axe_playwright_python") is None
        or not Path(CHROMIUM).exists()
    ):
        missing = f"the browser tests need playwright, axe-playwright-python and {CHROMIUM}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS), timeout=WAIT_MS)
        yield browser
        browser.close()


@contextmanager
def window(
    browser: Browser, size: tuple[int, int] = DESKTOP, scheme: Scheme = "light", **more: Any
) -> Iterator[BrowserContext]:
    """Open a separate browser profile without cookies."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        is_mobile=size is PHONE,
        has_touch=size is PHONE,
        accept_downloads=True,
        **more,
    )
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


class Complaints(list[str]):
    """Collects console warnings, console errors and script exceptions of pages."""

    def listen(self, page: Page) -> Page:
        """Collect messages of this page."""
        page.on("console", self._record)
        page.on("pageerror", lambda error: self.append(f"uncaught: {error}"))
        return page

    def _record(self, said: ConsoleMessage) -> None:
        if said.type in _BAD:
            self.append(f"{said.type}: {said.text}")

    def check(self, *, allowed: tuple[str, ...] = ()) -> None:
        """Fail if a message contains none in `allowed`."""
        messages = [text for text in self if not any(part in text for part in allowed)]
        assert messages == []


def sign_in(page: Page, address: str, token: str, path: str = "/experiments", name: str = "") -> None:
    """Open `path`, sign in, and return to `path`."""
    page.goto(address + path)
    page.get_by_label("Token of the cluster").fill(token)
    if name:
        page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(address + path)


def settle(page: Page) -> None:
    """Wait until every figure is drawn or explains why it is empty."""
    page.wait_for_function(IS_SETTLED)


def change_look(page: Page, size: tuple[int, int], scheme: Scheme) -> None:
    """Change to the other color scheme, wait until every figure is drawn in it, and resize the window."""
    page.evaluate(
        "() => document.querySelectorAll('.js-plotly-plot').forEach((plot) => plot.before = plot.data)"
    )
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.js-plotly-plot')].every((plot) => plot.data !== plot.before)"
    )
    page.set_viewport_size({"width": size[0], "height": size[1]})


def overflow(page: Page) -> int:
    """Return the page's width beyond its window in pixels; tables may scroll in their own box."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def violations(page: Page) -> list[str]:
    """List axe-core's serious and critical violations, one line per rule and element."""
    from axe_playwright_python.sync_playwright import Axe

    if not page.evaluate("'axe' in window"):  # the script stays until the page is left
        page.evaluate(Axe().axe_script)
    found = page.evaluate("() => axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{each['id']} ({each['impact']}): {' '.join(map(str, node['target']))}: "
        + (node.get("failureSummary") or "").replace("\n", " ")[:300]
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def mistakes(page: Page, path: str, folder: Path) -> list[str]:
    """List violations and overflow of the open page; if there are any, keep a screenshot in `folder`."""
    found = [f"{path}: {each}" for each in violations(page)]
    if wider := overflow(page):
        found.append(f"{path}: {wider} px wider than the window")
    if found:
        name = path.strip("/").replace("/", "-")[:60]
        page.screenshot(path=folder / f"{name}-{page.evaluate('innerWidth')}.png", full_page=True)
    return found
