"""The schedule shows the plan before and during a fit, or says that there is no plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cerebro.contract.events import SchedulePlanned
from cerebro.contract.runs import PlannedSubEpoch
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.serving import serving
from tests.dispatcher.stories import Story
from tests.e2e.browser import PHONE, Complaints, overflow, settle, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FIGURE = "/api/views/experiments/digits/figures/schedule"


def story(*, is_planned: bool) -> Story:
    """A fit of two models before its first sub-epoch."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=2, epochs=1)
    if is_planned:
        order = (
            PlannedSubEpoch("worker-0", "m00", 1, 0, 0.0),
            PlannedSubEpoch("worker-1", "m01", 1, 1, 0.0),
            PlannedSubEpoch("worker-0", "m01", 1, 0, 5.0),
            PlannedSubEpoch("worker-1", "m00", 1, 1, 5.0),
        )
        story.append(
            SchedulePlanned(
                run="fit-1", source="planner/cyclic", order=order, makespan_s=10.0, dispatch_s=12.0,
                lower_bound_s=9.0, seconds=0.1,
            )
        )  # fmt: skip
    return story


def page_and_figure(story: Story) -> tuple[str, dict[str, Any]]:
    """Return the text of the page and its figure."""
    bench = Bench()
    bench.store.add(story)
    browser = bench.signed_in()
    page = browser.get("/experiments/digits/schedule")
    figure = browser.client.get(
        FIGURE, base_url="http://127.0.0.1:7080", headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert (page.status_code, figure.status_code) == (200, 200)
    return text_of(page.text), figure.get_json()


def test_before_the_first_sub_epoch_the_plan_is_shown() -> None:
    """As text without scripts, and as hollow bars in the figure."""
    words, figure = page_and_figure(story(is_planned=True))
    assert (
        "No sub-epoch has started yet. fit-1 follows a plan of planner/cyclic: 10.0 s instead of 12.0 s."
        in words
    )
    assert {trace["name"] for trace in figure["data"]} == {"planned"}
    assert figure["layout"]["title"]["text"] == "Plan of 2 models on 2 workers"


def test_planned_sub_epochs_are_shown_with_running_sub_epochs() -> None:
    """A started sub-epoch is no longer shown as planned."""
    run_story = story(is_planned=True)
    run_story.run_task("fit-1/train/m00/e1/p0", "worker-0", None)
    words, figure = page_and_figure(run_story)
    assert "the run follows a plan of planner/cyclic" in words
    names = {trace["name"] for trace in figure["data"]}
    assert {"running", "planned", "busy devices"} <= names
    (planned,) = [t for t in figure["data"] if t["name"] == "planned" and t["x"] != [None]]
    assert len(planned["x"]) == 3


@pytest.mark.slow
def test_on_a_phone_the_plan_and_its_data_are_within_the_window(browser: Browser) -> None:
    """The table of the figure's data scrolls in its own box."""
    bench, heard = Bench(), Complaints()
    bench.store.add(story(is_planned=True))
    with serving(bench.app) as address, window(browser, PHONE, "dark") as context:
        page = heard.listen(context.new_page())
        sign_in(page, address, TOKEN, "/experiments/digits/schedule")
        settle(page)
        page.locator("#schedule-data summary").click()
        page.wait_for_selector("#schedule-data table")
        heads = page.locator("#schedule-data thead th").all_inner_texts()
        column = 1 + heads.index("sub-epochs planned next")
        cells = page.locator(f"#schedule-data tbody tr > :nth-child({column})")
        assert cells.all_inner_texts() == ["2", "2"]
        assert overflow(page) == 0
    heard.check()
