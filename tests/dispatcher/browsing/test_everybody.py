"""The pages without scripts, on a phone, and for readers who do not see the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.web_browser import sent_bytes
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.gallery import TABS
from tests.dispatcher.stories import Story
from tests.e2e.browser import PHONE, overflow, settle, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow

WEIGHT_BYTES = 150_000
"""Of a page as sent, without plotly's script."""


def test_figure_says_its_data_in_a_table(page: Page, address: str) -> None:
    """For readers who do not see it."""
    sign_in(page, address, TOKEN, "/experiments/digits/curves")
    settle(page)
    page.click("#curves-data summary")
    page.wait_for_selector("#curves-data td >> text=m00")
    assert "m00" in str(page.get_attribute("#curves .plot", "aria-label"))


def test_pages_work_without_scripts(browser: Browser, address: str, bench: Bench) -> None:
    """All of it but the refreshing and most figures: reading, curves, sorting, filtering, choosing, steering."""
    with window(browser, java_script_enabled=False) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN)
        page.click("text=digits")
        page.wait_for_url(f"{address}/experiments/digits")
        assert page.is_visible("text=trains m05, epoch 1, partition 0")
        assert _is_seen(page)
        page.click("nav >> text=Models")
        page.check("input[value=m00]")
        page.check("input[value=m03]")
        page.click("text=Compare selected")
        page.wait_for_selector("text=2 selected")
        page.click("thead >> text=learning_rate")
        page.wait_for_selector("th[aria-sort=ascending]")
        page.goto(f"{address}/experiments/digits/models/m01")
        page.click("text=Stop model")
        page.wait_for_selector(".model-heading >> text=stopped")
        assert type(bench.store.logs["digits"][-1]).__name__ == "ModelStopRequested"


def test_picture_stands_where_the_figure_will_be(page: Page, address: str) -> None:
    """Nobody waits for plotly's script to see curves; once it has drawn them, they answer the pointer."""
    held: list[Route] = []
    page.route("**/plotly.js*", lambda route: held.append(route))  # noqa: PLW0108 - it gets an attribute
    sign_in(page, address, TOKEN)
    page.goto(f"{address}/experiments/digits", wait_until="commit")
    page.wait_for_selector(".static-svg img")
    page.wait_for_function("() => document.querySelector('.static-svg img')?.complete")
    assert _is_seen(page)
    held[-1].continue_()
    settle(page)
    assert page.locator(".static-svg").count() == 0


def _is_seen(page: Page) -> bool:
    picture = page.locator("#curves .static-svg img")
    return picture.is_visible() and bool(picture.evaluate("image => image.naturalWidth > 0"))


def test_pages_of_many_models_are_light_and_fit_a_phone(browser: Browser, address: str, bench: Bench) -> None:
    """At most 150 kB as sent without plotly's script, and no wider than the window."""
    story = Story("many")
    story.workers_join()
    story.etl()
    story.fit(models=1000)
    bench.store.add(story)
    with window(browser, PHONE) as context:
        page = context.new_page()
        sign_in(page, address, TOKEN)
        for tab in TABS:
            fresh = context.new_page()
            weight = sent_bytes(fresh, f"{address}/experiments/many{tab}")
            assert 10_000 < weight < WEIGHT_BYTES, tab
            assert overflow(fresh) == 0, tab
            fresh.close()
