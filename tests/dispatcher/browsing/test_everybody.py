"""Pages work without scripts, on phones and with screen readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.web_browser import sent_bytes
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.gallery import TABS
from tests.dispatcher.stories import Story
from tests.e2e.browser import PHONE, overflow, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

WEIGHT_BYTES = 150_000
"""Limit for a page as sent, without plotly's script."""


def test_pages_work_without_scripts(browser: Browser, address: str, bench: Bench) -> None:
    """Everything works except refreshing and most figures."""
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


def _is_seen(page: Page) -> bool:
    picture = page.locator("#curves .static-svg img")
    return picture.is_visible() and bool(picture.evaluate("image => image.naturalWidth > 0"))


def test_pages_of_many_models_are_light_and_fit_a_phone(browser: Browser, address: str, bench: Bench) -> None:
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
