"""Brushing the category of an absent hyperparameter filters the table to models without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from cerebro.contract.records import Hyperparameters
from cerebro.figures.parallel_axes import hyperparameter_axis
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.serving import serving
from tests.dispatcher.stories import Story, fit_of
from tests.e2e.browser import Complaints, settle, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODELS: tuple[Hyperparameters, ...] = (
    {"optimizer": "sgd", "momentum": 0.5},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "adam"},
    {"optimizer": "adam", "amsgrad": "(absent)"},
)
MOMENTUM = 1
"""Index of the axis; its ticks from the bottom are 0.5, 0.9, absent."""

PLACE = """([axis, place]) => {
    const plot = document.querySelector("#parallel .plot"), box = plot.getBoundingClientRect();
    const {_size: size, xaxis, yaxis} = plot._fullLayout;
    return [box.left + size.l + xaxis.c2p(axis), box.top + size.t + yaxis.c2p(place)];
}"""
"""Screen position of a point on an axis of the parallel coordinates."""


def story() -> Story:
    """Four models of one epoch, two without momentum."""
    return fit_of(MODELS, name="digits")


def test_an_axis_marks_the_category_of_absent_values() -> None:
    """A value with the same text stays a value."""
    assert hyperparameter_axis("momentum", [0.5, None, 0.9]).describe()["absent"] == 2
    assert hyperparameter_axis("amsgrad", ["(absent)", "yes"]).describe()["absent"] is None
    assert hyperparameter_axis("lr", [0.5, 0.9]).describe()["absent"] is None


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    bench = Bench()
    bench.store.add(story())
    heard = Complaints()
    with serving(bench.app) as address, window(browser) as context:
        opened = heard.listen(context.new_page())
        sign_in(opened, address, TOKEN, "/experiments/digits/analysis")
        settle(opened)
        yield opened
    heard.check()


def brush(page: Page, low: float, high: float) -> str:
    """Drag along the axis; return the filter in the address."""
    (x, begin), (_, end) = (page.evaluate(PLACE, [MOMENTUM, place]) for place in (low, high))
    page.mouse.move(x, begin)
    page.mouse.down()
    page.mouse.move(x, (begin + end) / 2)
    page.mouse.move(x, end)
    page.mouse.up()
    page.wait_for_url("**brush=**")
    return parse_qs(urlsplit(page.url).query)["brush"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "high", "sentence", "models"),
    [
        (0.8, 1.0, "hp.momentum is empty", {"m02", "m03"}),
        (0.3, 1.0, '(hp.momentum in ("0.9") or hp.momentum is empty)', {"m01", "m02", "m03"}),
        (-0.02, 0.7, 'hp.momentum in ("0.5", "0.9")', {"m00", "m01"}),
    ],
)
def test_the_table_lists_the_brushed_models(
    page: Page, low: float, high: float, sentence: str, models: set[str]
) -> None:
    """Opening the address again shows the same brush."""
    assert brush(page, low, high) == sentence
    rows = "[data-key=parallel-part] tbody tr"
    page.wait_for_function(
        "([rows, number]) => document.querySelectorAll(rows).length === number", arg=[rows, len(models)]
    )
    assert set(page.locator(rows).evaluate_all("rows => rows.map((row) => row.dataset.model)")) == models
    page.reload()
    settle(page)
    boxes = "document.querySelector('#parallel .plot').layout.shapes.filter((s) => s.type === 'rect')"
    page.wait_for_function(f"{boxes}.length === 1")
    (box,) = page.evaluate(boxes)
    assert (box["y1"] >= 1.0) is ("is empty" in sentence)
    assert (box["y0"] <= 0.5) is ("0.9" in sentence)
