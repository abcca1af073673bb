"""Search, sort order and selection are kept in the address."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.dispatcher.browsing.growing import grow
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import Story
from tests.e2e.browser import sign_in, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def test_a_search_changes_the_address_and_can_be_undone(page: Page, address: str, bench: Bench) -> None:
    """`/` searches; Back reverts it without a reload."""
    bench.store.add(Story("whales"))
    sign_in(page, address, TOKEN)
    page.evaluate("window.stays = true")
    page.keyboard.press("/")
    page.keyboard.type("whal")
    page.keyboard.press("Enter")
    page.wait_for_selector("#rows tr[data-key=digits]", state="detached")
    assert page.url == f"{address}/experiments?q=whal"
    page.go_back()
    page.wait_for_selector("#rows tr[data-key=digits]")
    assert page.input_value("#q") == ""
    assert page.evaluate("window.stays")


def test_chosen_models_outlive_sorting_filtering_and_updates(page: Page, address: str, bench: Bench) -> None:
    """The table below compares the selected models."""
    sign_in(page, address, TOKEN, "/experiments/digits/models")
    page.check("input[value=m01]")
    page.wait_for_selector("text=1 selected")
    page.check("input[value=m03]")
    page.wait_for_selector("text=2 selected")
    page.click("thead >> text=learning_rate")
    page.wait_for_selector("th[aria-sort]")
    page.fill("#filter", "layers = 1")
    page.keyboard.press("Enter")
    page.wait_for_selector("tr[data-model=m03]", state="detached")
    grow(bench).pause("the checkpoint volume is full")
    page.wait_for_selector("#live >> text=the checkpoint volume is full")
    assert "pick=m01,m03" in page.url
    compared = page.inner_text("[aria-label='Comparison of selected models']")
    assert re.search(r"learning_rate\s+0\.05\s+0\.0125", compared)
    page.get_by_role("link", name="Clear", exact=True).click()
    page.wait_for_selector(".selection", state="detached")


def test_the_heading_selects_all_matching_models(page: Page, address: str) -> None:
    """Unticking one keeps the others, also those on other pages of the table."""
    sign_in(page, address, TOKEN, "/experiments/digits/models?filter=layers+%3D+1&size=2")
    page.get_by_label("Select all 4 matching models").check()
    page.wait_for_selector("text=4 selected")
    assert "pick=*" in page.url
    page.uncheck("input[value=m02]")
    page.wait_for_selector("text=3 selected")
    assert page.url.endswith("pick=*,-m02")
    assert page.get_by_label("Select all 4 matching models").evaluate("box => box.indeterminate")
    page.check("input[value=m02]")
    page.wait_for_selector("text=4 selected")
    assert page.url.endswith("pick=*")
    page.uncheck("input[value=m00]")
    page.wait_for_selector("text=3 selected")
    page.get_by_label("Select all 4 matching models").check()
    page.wait_for_selector("text=4 selected")
    page.get_by_label("Select all 4 matching models").uncheck()
    page.wait_for_selector(".selection", state="detached")


def test_the_menu_of_a_row_acts_on_its_model(page: Page, address: str) -> None:
    """It opens above the table, inside the window, passes axe, and closes after a command."""
    sign_in(page, address, TOKEN, "/experiments/digits/models")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.get_by_role("button", name="Actions of m07").click()
        menu = page.locator("#menu-m07")
        box = menu.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert violations(page) == []
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Actions of m07").click()
    page.get_by_role("button", name="Retry m07").click()
    page.wait_for_selector("tr[data-model=m07] >> text=queued")
    assert not menu.is_visible()


def test_keyboard_shortcuts_work(page: Page, address: str) -> None:
    """Digits open tabs, arrows step through models, `u` goes up, `?` shows help; keys are ignored while typing."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.keyboard.press("2")
    page.wait_for_url(f"{address}/experiments/digits/models")
    page.keyboard.press("/")
    page.keyboard.type("3")
    assert page.input_value("#filter") == "3"
    page.goto(f"{address}/experiments/digits/models/m03")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("h2 >> text=m04")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("h2 >> text=m03")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_url(f"{address}/experiments/digits/models")
