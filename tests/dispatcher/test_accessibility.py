"""Pages pass axe-core, fit a phone, and work by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.gallery import gallery, paths, tabs
from tests.dispatcher.serving import serving
from tests.e2e.browser import (
    DESKTOP,
    PHONE,
    SCHEMES,
    Complaints,
    Scheme,
    change_look,
    mistakes,
    settle,
    sign_in,
    violations,
    window,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

IS_SEEN = """() => {
    if (document.activeElement === document.body) return true; // behind the last one
    const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== "none" || style.boxShadow !== "none";
}"""
"""True if the focused element is visible."""

LOOKS: tuple[tuple[tuple[int, int], Scheme], ...] = (
    (DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark"),
)  # fmt: skip
"""Window and color scheme; neighbors differ in the scheme."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return gallery(tmp_path_factory.mktemp("volumes"))


@pytest.fixture(scope="module")
def address(bench: Bench) -> Iterator[str]:
    with serving(bench.app) as at:
        yield at


def test_every_page_is_accessible(browser: Browser, address: str, tmp_path: Path) -> None:
    """Experiments in every state; every second page is loaded in the last look instead of the first."""
    wrong: list[str] = []
    is_turned = False
    with window(browser) as context:
        complaints = Complaints()
        page = complaints.listen(context.new_page())
        for path in ("/sign-in", *paths()):
            page.goto(address + path)
            settle(page)
            # Every state is tested with each width and each color scheme once; tabs also in the other combinations.
            looks = LOOKS if path in ("/sign-in", *tabs()) else (LOOKS[0], LOOKS[-1])
            first, *others = reversed(looks) if is_turned else looks
            assert page.evaluate("innerWidth") == first[0][0]
            wrong += mistakes(page, path, tmp_path)
            for size, scheme in others:
                change_look(page, size, scheme)
                wrong += mistakes(page, path, tmp_path)
            is_turned = not is_turned
            if path == "/sign-in":
                sign_in(page, address, TOKEN)
    assert not wrong, "\n".join(wrong)
    complaints.check(allowed=("status of 404",))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_are_accessible_during_an_outage(
    browser: Browser, address: str, bench: Bench, scheme: Scheme
) -> None:
    """Known data stays below a message; a page without data says what to do."""
    with window(browser, DESKTOP, scheme) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN, "/experiments/digits")
        bench.store.is_away = True
        bench.monotonic.now += 60
        try:
            for path in ("/experiments", "/experiments/digits", "/experiments/new", "/cluster"):
                page.goto(address + path)
                settle(page)
                assert "not answer" in page.inner_text("main")
                assert violations(page) == [], path
        finally:
            bench.store.is_away = False
            bench.monotonic.now += 60


def test_open_menus_are_accessible(browser: Browser, address: str) -> None:
    """Menus, help and details pass the same checks."""
    with window(browser) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN, "/experiments/digits/models")
        for opener in page.locator("details > summary").all():
            opener.click()
            assert violations(page) == [], opener.inner_text()
            page.keyboard.press("Escape")  # close it, as it may cover the next one
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for()
        assert violations(page) == []


def test_a_page_can_be_used_by_keyboard(browser: Browser, address: str) -> None:
    """The first stop skips to the content, every stop is visible, digits open tabs, Enter follows."""
    with window(browser) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN, "/experiments/digits")
        page.goto(f"{address}/experiments/digits")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        stops = page.locator("a[href], button, input, select, summary").count()
        for _ in range(min(stops, 40)):
            page.keyboard.press("Tab")
            assert page.evaluate(IS_SEEN), page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        page.keyboard.press("2")
        page.wait_for_url(f"{address}/experiments/digits/models")
