"""The start form checks one thing at a time, beside its field, before it is sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.dispatcher.fakes import TOKEN
from tests.e2e.browser import sign_in
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.slow


@pytest.fixture
def held(page: Page, address: str) -> list[Route]:
    """Open the form; requests of checks wait in this list."""
    held: list[Route] = []
    sign_in(page, address, TOKEN, "/start")

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/start/check", hold)
    return held


def arrive(page: Page, held: list[Route], number: int) -> None:
    """Wait until the browser has sent `number` checks. Each evaluation handles events of the browser."""
    until = time.monotonic() + HANG_S
    while len(held) < number:
        assert time.monotonic() < until
        page.evaluate("1")


def test_a_newer_value_cancels_the_running_check(page: Page, held: list[Route]) -> None:
    page.fill("#name", "Not A Name")
    arrive(page, held, 1)
    page.wait_for_selector("#name-found >> text=Checking")
    with page.expect_event("requestfailed"):
        page.fill("#name", "digits-2")
    arrive(page, held, 2)
    held[1].continue_()
    page.wait_for_selector("#name-found:empty", state="attached")
    assert page.locator("#name-mistake").count() == 0


def test_checks_of_several_fields_run_one_at_a_time(page: Page, held: list[Route]) -> None:
    page.fill("#name", "digits-2")
    page.fill("#misc", "nowhere")
    arrive(page, held, 1)
    page.get_by_role("button", name="Check", exact=True).click()  # starts all due checks
    page.wait_for_selector("text=Waiting for the checks")
    assert len(held) == 1
    held[0].continue_()
    arrive(page, held, 2)
    held[1].continue_()
    page.wait_for_selector("#misc-mistake")


def test_submission_waits_for_the_check(page: Page, held: list[Route]) -> None:
    """A field that needs a correction stops it and gets the focus."""
    page.fill("#name", "Not A Name")
    arrive(page, held, 1)
    create = page.get_by_role("button", name="Create experiment")
    create.click()
    page.wait_for_selector("text=Waiting for the checks")
    assert create.is_disabled()
    held[0].continue_()
    page.wait_for_selector("text=A field needs a correction")
    assert page.evaluate("document.activeElement.id") == "name"
    assert create.is_enabled()


def test_submission_goes_on_after_the_checks(page: Page, address: str, held: list[Route]) -> None:
    """A check that has not begun yet begins at once."""
    page.fill("#train_metadata", "/data/train.csv")
    page.fill("#name", "digits-2")
    page.get_by_role("button", name="Create experiment").click()
    for number in (1, 2):
        arrive(page, held, number)
        held[number - 1].fulfill(json={"fields": {}, "archive": "", "filled": {}})
    page.wait_for_url(f"{address}/start/digits-2")
