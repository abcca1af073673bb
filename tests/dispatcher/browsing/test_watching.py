"""Open pages follow a run without disturbing the reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.results import TaskResult
from tests.dispatcher.browsing.growing import grow
from tests.dispatcher.fakes import TOKEN, Bench
from tests.e2e.browser import settle, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow


def test_page_follows_the_run(page: Page, address: str, bench: Bench) -> None:
    """Opened sections stay open; the tab's title and icon show the state."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.click("summary:has-text('shapes differ')")
    grow(bench).pause("the checkpoint volume is full")
    page.wait_for_selector("text=the checkpoint volume is full")
    assert page.is_visible("text=Traceback")
    assert "paused" in page.title()
    assert "icon-paused" in str(page.get_attribute("#icon", "href"))


def test_the_page_does_not_refresh_while_the_reader_selects_text(
    page: Page, address: str, bench: Bench
) -> None:
    """The page shows that it waits and refreshes later."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.wait_for_selector("#freshness[data-kind=live]")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#live h1'))")
    page.wait_for_selector("text=waits while you read")
    grow(bench).pause("the checkpoint volume is full")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_selector("text=the checkpoint volume is full")


def test_focus_stays_on_a_row_that_moves(page: Page, address: str, bench: Bench) -> None:
    """A model that becomes the best moves to the top; the keyboard user is still at its menu."""
    sign_in(page, address, TOKEN, "/experiments/digits/models")
    page.get_by_role("button", name="Actions of m02").focus()
    story = grow(bench)
    for task, worker in (("fit-1/train/m05/e1/p0", "worker-0"), ("fit-1/train/m04/e1/p1", "worker-1")):
        story.append(TaskCommitted(task=task, attempt=1, worker=worker, result=TaskResult(rows=898)))
    for epoch in (2, 3):
        story.train("m02", epoch)
    page.wait_for_selector("tbody tr:first-child >> text=m02")
    assert page.evaluate("document.activeElement.title") == "Actions of m02"
    page.keyboard.press("Enter")
    assert page.locator("#menu-m02").is_visible()


def test_failed_refresh_keeps_the_last_data(page: Page, address: str, context: BrowserContext) -> None:
    """The data is dimmed and shows the time of the last answer."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.wait_for_selector("#freshness[data-kind=live]")
    context.set_offline(True)
    page.wait_for_selector("#live.stale")
    assert page.is_visible("text=no answer since")
    assert page.is_visible("table >> text=trains m04")
    context.set_offline(False)
    page.wait_for_selector("#live:not(.stale)")


def test_zooming_loads_more_points(page: Page, address: str) -> None:
    """Zooming loads points that the full view dropped; a double click loads the full view."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves?axis=time")
    settle(page)
    plot = "document.querySelector('#curves .plot')"
    with page.expect_request(re.compile(r"figures/curves.*start=0\.00000&stop=40\.0000")):
        page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.range[0]': 10, 'xaxis.range[1]': 30}})")
    with page.expect_request(lambda asked: "figures/curves" in asked.url and "start" not in asked.url):
        page.evaluate(f"Plotly.relayout({plot}, {{'xaxis.autorange': true}})")


def test_refused_fragment_is_not_put_into_the_page(page: Page, address: str) -> None:
    """Errors are JSON. The last good data stays and is marked as stale."""
    sign_in(page, address, TOKEN, "/experiments/digits")
    page.route("**/fragments/**", lambda route: route.fulfill(status=400, json={"message": "not understood"}))
    page.wait_for_selector("#freshness[data-kind=failed]")
    assert page.is_visible("h1 >> text=digits")
    assert "not understood" not in page.inner_text("#live")


def test_a_figure_that_failed_is_loaded_again_although_the_page_does_not_change(
    page: Page, address: str
) -> None:
    """For example when the server was busy while the color scheme changed."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves")
    settle(page)
    page.route("**/fragments/**", lambda route: route.fulfill(status=304))
    page.route(
        "**/figures/curves*", lambda route: route.fulfill(status=503, json={"message": "busy"}), times=1
    )
    drawn = page.evaluate_handle("document.querySelector('#curves .plot').data")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("#curves .figure-said:has-text('Outdated: busy')")
    page.wait_for_function("(drawn) => document.querySelector('#curves .plot').data !== drawn", arg=drawn)
    page.wait_for_selector("#curves .figure-said:empty", state="attached")
