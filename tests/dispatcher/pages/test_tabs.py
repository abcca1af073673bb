"""The schedule and data tabs, and all tabs of an empty experiment."""

from __future__ import annotations

import re

from cerebro.contract.events import SchedulePlanned
from cerebro.state import epoch_report
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story, running_story


def test_the_schedule_tab_shows_a_running_fit(bench: Bench, browser: Browser) -> None:
    """Makespan, bound, gap, idle time, the plan, one row per epoch, and each sub-epoch."""
    story = running_story()
    plan: dict[str, object] = {"makespan_s": 12.1, "dispatch_s": 13.4, "lower_bound_s": 12.0, "seconds": 0.5}
    plan["order"] = [("worker-0", "m00", 2, 0, 1.0)]
    story.append(SchedulePlanned.model_validate({"run": "fit-1", "source": "planner/cyclic", **plan}))
    story.append(epoch_report(story.state, story.state.runs["fit-1"], 1))
    bench.store.add(story)
    bench.clock.now = story.time + 10.0
    page = text_of(browser.get("/fragments/experiments/digits/schedule").text)
    assert (
        "Makespan so far 35.4 s from the first sub-epoch to the last; epoch 1 of 3 Lower bound 22.2 s" in page
    )
    assert (
        "Gap to the lower bound 13.2 s above the lower bound, including attempts that did not commit Idle 36.2 %"
        in page
    )
    assert re.search(r"trains m00, epoch 1, partition 0 committed worker-0 898 \+0\.0 s", page)
    assert "the run follows a plan of planner/cyclic: 12.1 s instead of 13.4 s" in page
    assert "2 so far 35.4 s 22.2 s 59.5 % 0.0 s 6.8 s" in page
    assert "1 17.4 s 8.0 s 117.5 % 0.0 s 18.8 s" in page
    assert "Start of processes" not in page
    assert "trains m07, epoch 1, partition 0 failed worker-0" in page
    assert "Change" in page


def test_the_schedule_does_not_advance_during_an_outage(bench: Bench, browser: Browser) -> None:
    """Progress is unknown during an outage, so the time axis ends at its start."""
    bench.store.add(running_story())
    page = "/fragments/experiments/digits/schedule"
    browser.get(page)
    bench.store.is_away = True
    bench.monotonic.now += 10.0
    before = browser.get(page).text
    bench.clock.now += 100.0
    bench.monotonic.now += 10.0
    after = browser.get(page).text
    found = re.findall(r'Makespan so far</dt><dd class="large">([^<]*)', before)
    assert found == re.findall(r'Makespan so far</dt><dd class="large">([^<]*)', after) != []


def test_empty_tabs_show_the_next_command(bench: Bench, browser: Browser) -> None:
    """Each says why it is empty and shows the next command to copy."""
    bench.store.add(Story("digits"))
    for tab, said in (
        ("", "No run yet"),
        ("/models", "No fit run yet"),
        ("/curves", "No fit run yet"),
        ("/analysis", "No fit run yet"),
        ("/schedule", "No fit run yet"),
        ("/data", "No data set yet"),
    ):
        page = browser.get(f"/experiments/digits{tab}").text
        assert said in page
        assert 'data-copy="' in page


def test_rows_in_are_rows_out_plus_failed_rows(bench: Bench, browser: Browser) -> None:
    """Rows in = rows out + failed rows, in total and for each split and partition."""
    story = Story("digits")
    story.workers_join()
    story.etl(failed=3)
    bench.store.add(story)
    page = browser.get("/experiments/digits/data").text
    assert "Complete: 1,796 rows in, 1,790 out, 6 failed." in text_of(page)
    assert "train 2 /2 1,796 1,790 6" in text_of(page)
    assert "failed-rows?split=train&amp;partition=0" in page
