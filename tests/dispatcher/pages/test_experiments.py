"""The list of experiments: rows, search, paging and caching."""

from __future__ import annotations

import pytest

from cerebro.contract.records import ExperimentSummary
from dispatcher.experiments.view import WorkingTime, row_of
from dispatcher.read_models.read_model import ReadModel
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story, running_story


def test_the_row_of_a_running_experiment_shows_its_progress(bench: Bench, browser: Browser) -> None:
    """State, run, tasks, models, best metric with direction, author."""
    bench.store.add(running_story())
    row = text_of(browser.get("/experiments").text)
    assert "digits running 23 % fit-1" in row
    assert "0 /8 1 failed" in row
    assert "accuracy \u2191 , higher is better 0.9405" in row
    assert "ada" in row


def test_a_long_list_is_paged(bench: Bench, browser: Browser) -> None:
    """A page number beyond the last shows the last page."""
    for index in range(120):
        bench.store.add(Story(f"x-{index:03}"))
    first = text_of(browser.get("/experiments").text)
    assert "50 of 120." in first
    assert "Page 1 of 3" in first
    for page in ("3", "99"):
        last = text_of(browser.get(f"/experiments?page={page}").text)
        assert "20 of 120." in last
        assert "Page 3 of 3" in last
    for nonsense in ("-1", "x", "0", "1" * 50, "\u0663"):
        assert "Page 1 of 3" in text_of(browser.get(f"/experiments?page={nonsense}").text)


def test_logs_of_ended_experiments_are_read_once(bench: Bench, browser: Browser) -> None:
    """A second view reads no events of unchanged logs."""
    story = Story("done")
    story.workers_join()
    story.etl()
    bench.store.add(story)
    browser.get("/experiments")
    bench.store.calls.clear()
    browser.get("/experiments")
    assert "events" not in bench.store.calls


def test_the_list_shows_the_duration_of_all_runs(bench: Bench, browser: Browser) -> None:
    """The sum over all runs without the gaps between them; empty without runs."""
    story = Story("worked")
    story.workers_join()
    story.etl()
    story.time += 100_000
    story.fit(models=1)
    story.train("m00", 1)
    story.finish()
    bench.store.add(story)
    bench.store.add(Story("new"))
    bench.clock.now = story.time + 10
    runs = story.state.runs.values()
    rows = {
        row.name: row
        for row in (row_of(_followed(each), _summary(each), 0) for each in (story, Story("new")))
    }
    worked = rows["worked"].worked
    assert worked.ended is not None
    assert worked.begun is not None
    assert worked.ended - worked.begun == pytest.approx(
        sum(run.clock.ended - run.clock.started for run in runs)
    )
    assert worked.started == story.state.runs["etl-1"].clock.started
    assert rows["new"].worked == WorkingTime()
    new = text_of(browser.get("/experiments").text).split("new new")[1]
    assert new.startswith(" \u2013 \u2013 \u2013 \u2013 \u2013 \u2013 ada")


def _followed(story: Story) -> ReadModel:
    read_model = ReadModel(story.record)
    read_model.apply(story.events)
    return read_model


def _summary(story: Story) -> ExperimentSummary:
    return ExperimentSummary(experiment=story.record, last_seq=0, last_event=story.time, open_runs=())
