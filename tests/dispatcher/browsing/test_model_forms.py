"""Model forms in a browser show the difference as the user types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cerebro.contract.events import ModelChanged, ModelsAdded, ModelStopRequested
from tests.dispatcher.fakes import TOKEN, Bench
from tests.e2e.browser import sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

AT = "/experiments/digits"


def test_the_difference_is_shown_while_the_user_types(page: Page, address: str, bench: Bench) -> None:
    """An error appears next to its field, which keeps its text and the focus."""
    sign_in(page, address, TOKEN, f"{AT}/models/m01")
    page.click("text=Change…")
    page.wait_for_url("**/change?**")
    send = "button[value=send]"
    assert page.locator(send).count() == 0
    page.fill("[name='hp.learning_rate']", "fast")
    page.wait_for_selector("#value-0-mistake >> text=is a text: give a number")
    assert page.get_attribute("#value-0", "aria-describedby") == "value-0-mistake"
    assert page.evaluate("document.activeElement.id") == "value-0"
    assert page.locator(send).count() == 0
    page.fill("[name='hp.learning_rate']", "0.5")
    page.wait_for_selector("#difference ins >> text=0.5")
    assert page.locator("#value-0-mistake").count() == 0
    assert page.inner_text("#difference [role=status]") == "Changes 1 value."
    page.click(send)
    page.wait_for_selector("text=Changed values")
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelChanged)
    assert event.hyperparams == {"learning_rate": 0.5}


def test_a_clone_can_be_created_by_keyboard(page: Page, address: str, bench: Bench) -> None:
    """From the parent's page to the new model's page."""
    sign_in(page, address, TOKEN, f"{AT}/models/m00")
    page.focus("text=Clone…")
    page.keyboard.press("Enter")
    page.wait_for_url("**/clone?**")
    page.focus("[name='hp.layers']")
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    page.wait_for_selector("#difference ins >> text=3")
    page.focus("[name=start]")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#difference >> text=It continues m00 from epoch 2")
    page.focus("[name=epochs]")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.value") == "send"
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Continues m00 from epoch 2")
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelsAdded)
    assert event.models[0].hyperparams["layers"] == 3


def test_a_model_is_changed_without_scripts(browser: Browser, address: str, bench: Bench) -> None:
    """One button shows the difference, another sends it."""
    with window(browser, java_script_enabled=False) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN, f"{AT}/models/m01")
        page.click("text=Change…")
        page.fill("[name='hp.layers']", "x")
        page.click("text=Show the difference")
        assert page.input_value("[name='hp.layers']") == "x"
        assert page.is_visible("#value-1-mistake")
        page.fill("[name='hp.layers']", "3")
        page.click("text=Show the difference")
        assert page.inner_text("#difference ins") == "3"
        page.click("button[value=send]")
        page.wait_for_selector("text=Changed values")
    event = bench.store.logs["digits"][-1]
    assert isinstance(event, ModelChanged)
    assert event.hyperparams == {"layers": 3}


def test_a_double_click_creates_one_clone(page: Page, address: str, bench: Bench) -> None:
    """The second click is not sent. After Back the button works again."""
    sign_in(page, address, TOKEN, f"{AT}/clone?model=m00")
    page.fill("[name='hp.layers']", "3")
    page.wait_for_selector("#difference ins >> text=3")
    page.wait_for_selector("button[value=send]:enabled")
    before = len(bench.store.logs["digits"])
    page.dblclick("button[value=send]")
    page.wait_for_url("**/models/m08**")
    assert len(bench.store.logs["digits"]) == before + 1
    page.go_back()
    page.fill("[name='hp.layers']", "4")
    page.wait_for_selector("#difference ins >> text=4")
    page.click("button[value=send]:enabled")
    page.wait_for_url("**/models/m09**")


def test_the_reason_for_a_refusal_appears_while_the_user_types(
    page: Page, address: str, bench: Bench
) -> None:
    """The model ends while the form is open. Half-typed text stays."""
    sign_in(page, address, TOKEN, f"{AT}/prioritize?model=m01")
    bench.store.append("digits", ModelStopRequested(run="fit-1", model="m01", by="Bob"))
    bench.monotonic.now += 1
    page.fill("[name=priority]", "hig")
    page.wait_for_selector("#difference >> text=m01 of fit-1 is stopped")
    assert page.input_value("[name=priority]") == "hig"
