"""Command buttons report the outcome without leaving the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import Story
from tests.e2e.browser import sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def test_model_is_stopped_and_resumed(page: Page, address: str, bench: Bench) -> None:
    sign_in(page, address, TOKEN, "/experiments/digits/models/m01")
    page.click("text=Stop model")
    page.wait_for_selector(".model-heading >> text=stopped")
    page.click("text=Resume model")
    page.wait_for_selector(".model-heading >> text=queued")
    messages = [type(event).__name__ for event in bench.store.logs["digits"][-2:]]
    assert messages == ["ModelStopRequested", "ModelResumed"]


def test_a_refused_command_shows_the_reason(page: Page, address: str) -> None:
    """The message stays until the user dismisses it."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m01")
    # In one step, since a refresh between the two actions would reset the form.
    page.evaluate(
        """() => {
            const model = document.querySelector(".model-heading input[name=model]");
            model.value = "nobody";
            model.form.querySelector("button").click();
        }"""
    )
    page.wait_for_selector(".toast >> text=nobody")
    page.click(".toast >> text=Close")
    page.wait_for_selector(".toast", state="detached")
    assert page.url == f"{address}/experiments/digits/models/m01"


def test_several_experiments_at_once(page: Page, address: str, bench: Bench) -> None:
    """The page offers only commands that every selected state allows. The selection survives a search."""
    bench.store.add(Story("whales"))
    sign_in(page, address, TOKEN)
    assert page.is_hidden("#batch")
    page.check("input[value=whales]")
    assert page.is_hidden("#batch >> text='Stop'")
    page.check("input[value=digits]")
    assert page.is_visible("#batch >> text='Stop'")
    page.uncheck("input[value=digits]")
    page.fill("#q", "digits")
    page.keyboard.press("Enter")
    page.wait_for_selector("#rows tr[data-key=whales]", state="detached")
    page.click("#batch >> text='Archive'")
    page.wait_for_selector("#batch", state="hidden")
    assert type(bench.store.logs["whales"][-1]).__name__ == "ExperimentArchived"
    assert type(bench.store.logs["digits"][-1]).__name__ != "ExperimentArchived"


def test_a_form_is_sent_once_although_it_is_clicked_twice(page: Page, address: str, bench: Bench) -> None:
    """Registering waits some seconds for the copy."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m00")
    page.click("#register summary")
    page.get_by_role("button", name="Register m00").dblclick()
    page.wait_for_url(f"{address}/registry?added=digits/1#digits")
    assert bench.store.calls.count("register_model") == 1


def test_a_form_can_be_sent_again_after_escape(page: Page, address: str) -> None:
    """The key cancels a request without an answer."""
    sign_in(page, address, TOKEN, "/experiments/digits/models/m00")
    sent = page.evaluate(
        """() => {
            const form = document.querySelector("#register form");
            const isSent = () => form.dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }));
            const before = [isSent(), isSent()];
            form.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
            return [...before, isSent(), isSent()];
        }"""
    )
    assert sent == [True, False, True, False]
