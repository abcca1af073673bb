"""No window width cuts a value or makes a list scroll sideways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.gallery import registered_models
from tests.dispatcher.search_logs import log_of
from tests.dispatcher.stories import Story, record
from tests.e2e.browser import overflow, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

WIDTHS = (360, 390, 540, 721, 768, 1024, 1200, 1201, 1440, 1920, 2560)

COVERED = """() => [...document.querySelectorAll(".models tbody tr:not(.note)")].flatMap((row) => {
  const edge = row.querySelector(".rowactions").getBoundingClientRect().left - 24;
  return [...row.querySelectorAll("td.num")].map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect();
  }).filter((text) => text.left < edge && text.right > edge + 24).map((text) => text.right - edge);
})"""

SHADED = """() => [...document.querySelectorAll(".scroll")].every((box) =>
  box.classList.contains("more-right") === box.scrollLeft + box.clientWidth < box.scrollWidth - 1)"""
"""True if exactly the boxes with hidden columns have a shadow at the right."""


@pytest.fixture
def signed_in(page: Page, address: str, bench: Bench) -> Page:
    """Open a page with a running experiment and a failed one with a long name."""
    story = Story("a-failed-experiment-with-a-rather-long-name", author="ada-of-the-long-names")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    for model in ("m00", "m01"):
        story.fail(f"fit-1/train/{model}/e1/p0", "worker-0", "ValueError: shapes differ")
    story.finish(error="all 2 models failed: ValueError: shapes differ")
    bench.store.add(story)
    bench.store.registered = registered_models()
    bench.store.records["asha"], bench.store.logs["asha"] = record("asha"), list(log_of("asha"))
    sign_in(page, address, TOKEN)
    return page


def test_no_page_is_wider_than_its_window(signed_in: Page, address: str) -> None:
    wider = {}
    for path in (
        "/experiments",
        "/experiments/digits",
        "/experiments/digits/models",
        "/experiments/digits/analysis",
        "/experiments/asha/search",
        "/experiments/digits/models/m00",
        "/registry",
        "/compare?pick=digits/m00,asha/m08,asha/m01,asha/m02,asha/m03,asha/m04&all=1",
    ):
        signed_in.goto(address + path)
        for width in WIDTHS:
            signed_in.set_viewport_size({"width": width, "height": 800})
            wider[path, width] = overflow(signed_in)
    assert not any(wider.values()), wider


def test_the_column_of_buttons_covers_no_number(signed_in: Page, address: str) -> None:
    """The usual columns fit from 1024 px; in a narrower window a shadow shows that more columns follow."""
    signed_in.goto(f"{address}/experiments/digits/models")
    for width in WIDTHS:
        signed_in.set_viewport_size({"width": width, "height": 800})
        if width >= 1024:
            assert signed_in.evaluate(COVERED) == [], width
        signed_in.wait_for_function(SHADED)


def test_a_box_shows_on_which_sides_it_scrolls(signed_in: Page, address: str) -> None:
    signed_in.set_viewport_size({"width": 390, "height": 800})
    signed_in.goto(f"{address}/experiments/digits/models")
    box = signed_in.locator(".scroll.models")
    signed_in.wait_for_selector(".scroll.models.more-right:not(.more-left)")
    box.evaluate("(box) => box.scrollLeft = 40")
    signed_in.wait_for_selector(".scroll.models.more-right.more-left")
    box.evaluate("(box) => box.scrollLeft = box.scrollWidth")
    signed_in.wait_for_selector(".scroll.models.more-left:not(.more-right)")


def test_the_sheet_of_columns_is_inside_the_window(signed_in: Page, address: str) -> None:
    """The buttons are below the checkboxes."""
    signed_in.goto(f"{address}/experiments/digits/models")
    signed_in.locator("#columns > summary").click()
    for width in WIDTHS:
        signed_in.set_viewport_size({"width": width, "height": 800})
        sheet = signed_in.locator("#columns .sheet").bounding_box()
        boxes = signed_in.locator("#columns .boxes").bounding_box()
        buttons = signed_in.locator("#columns .actions").bounding_box()
        assert sheet
        assert boxes
        assert buttons
        assert sheet["x"] >= 0, width
        assert sheet["x"] + sheet["width"] <= width, width
        assert buttons["y"] >= boxes["y"] + boxes["height"], width
        assert buttons["x"] + buttons["width"] <= sheet["x"] + sheet["width"], width
