"""Brushing an axis of the parallel coordinates filters the table through the address."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import FitPlan, FitRequest
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.stories import CODE, NOW, Story
from tests.e2e.browser import settle, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

PLACE = """([axis, place]) => {
    const plot = document.querySelector("#parallel .plot"), box = plot.getBoundingClientRect();
    const {_size: size, xaxis, yaxis} = plot._fullLayout;
    return [box.left + size.l + xaxis.c2p(axis), box.top + size.t + yaxis.c2p(place)];
}"""
"""Screen position of a point on an axis of the parallel coordinates."""


def test_a_brush_over_categories_filters_the_table(page: Page, address: str, bench: Bench) -> None:
    """The server parses the filter that the script writes.

    A second brush survives a reload, and an axis whose name ends like the metric's column is not confused with it.
    """
    story = Story("words", began=NOW - 120)
    story.workers_join()
    story.etl()
    words = tuple(
        {"xbest": 0.1 * 2**i, "optimizer": "ada, (m)" if i % 2 else 'sg"d', "batch_size": 32}
        for i in range(4)
    )
    request = FitRequest(code=CODE, models=words, epochs=1, metric="accuracy", mode="max")
    story.append(RunRequested(run="fit-1", request=request))
    models = {f"m{i:02}": given for i, given in enumerate(words)}
    story.append(
        RunStarted(run="fit-1", plan=FitPlan(dataset="d1", models=models, partitions={0: 898, 1: 898}))
    )
    for model in models:
        story.train(model, 1)
    bench.store.add(story)
    sign_in(page, address, TOKEN, "/experiments/words/analysis")
    settle(page)
    axes = page.evaluate(
        "document.querySelector('#parallel .plot').layout.meta.axes.map((axis) => axis.name)"
    )
    at, metric = axes.index("optimizer"), axes.index("accuracy")
    first = page.evaluate(f"document.querySelector('#parallel .plot').layout.meta.axes[{at}].categories[0]")
    page.locator("#parallel").scroll_into_view_if_needed()
    for axis, low, high in ((at, 0.0, 0.3), (metric, 0.0, 1.0)):
        page.mouse.move(*page.evaluate(PLACE, [axis, low]))
        page.mouse.down()
        page.mouse.move(*page.evaluate(PLACE, [axis, high]), steps=4)
        page.mouse.up()
        page.wait_for_selector("text=2 of 4 models")
    written = parse_qs(urlsplit(page.url).query)["brush"][0]
    assert 'hp.optimizer in ("' in written
    assert first.replace('"', '\\"') in written
    page.reload()
    settle(page)
    page.wait_for_selector("text=2 of 4 models")
    shown = page.evaluate(
        "document.querySelector('#parallel .plot').layout.shapes.filter((box) => box.type === 'rect')"
        ".map((box) => (box.x0 + box.x1) / 2)"
    )
    assert sorted(round(middle) for middle in shown) == sorted([at, metric])
