"""The command palette, by keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cerebro.contract.events import RunStopRequested
from tests.dispatcher.fakes import TOKEN, Bench
from tests.e2e.browser import sign_in, violations
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def select(page: Page, text: str, option: str) -> None:
    """Open the palette, type, and wait until the option is the selected one."""
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Go to").fill(text)
    page.get_by_role("option", name=option, exact=True).wait_for()
    while page.locator("#palette [aria-selected=true]").inner_text().split() != option.split():
        page.keyboard.press("ArrowDown")
    active = page.locator("#palette-input").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"


def test_it_opens_experiments_tabs_and_models(page: Page, address: str) -> None:
    sign_in(page, address, TOKEN, "/experiments")
    select(page, "digi", "digits experiment")
    assert violations(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/experiments/digits")
    select(page, "curv", "Curves tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/experiments/digits/curves*")
    select(page, "m03", "m03 model")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/experiments/digits/models/m03*")


def test_it_gives_the_commands_of_the_page(page: Page, address: str, bench: Bench) -> None:
    """Escape closes it without an effect."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    assert not page.locator("#palette").is_visible()
    select(page, "stop", "Stop action")
    page.keyboard.press("Enter")
    until(lambda: isinstance(bench.store.logs["digits"][-1], RunStopRequested), "the run is asked to stop")


def test_it_says_that_nothing_is_found(page: Page, address: str) -> None:
    """User input is plain text."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Go to").fill('<b>"\\')
    page.locator("#palette-count", has_text="No results").wait_for()
    page.keyboard.press("Enter")
    assert page.locator("#palette").is_visible()


def test_it_opens_a_menu_but_sends_no_form_in_it(page: Page, address: str, bench: Bench) -> None:
    """A reader must see a form before it is sent."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m03")
    select(page, "register", "Register menu")
    options = page.locator("#palette-list").inner_text()
    assert "action" not in options
    page.keyboard.press("Enter")
    assert page.locator("details.menu[open] input:focus").count() == 1
    assert bench.store.registered == ()
