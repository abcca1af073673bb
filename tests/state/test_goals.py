"""The cost of a fit, and messages about its goal."""

from __future__ import annotations

import pytest

from cerebro.contract.events import ForecastMade, RunFinished, RunPaused, RunResumed
from cerebro.contract.runs import ForecastEnd, Goal
from cerebro.state.runs.goals import forecast_lines, spent, worker_hours
from tests.state.stories import Story, lost


def begun(goal: Goal = Goal()) -> Story:  # noqa: B008 - it is immutable
    """A fit, and two workers that joined before the first run."""
    story = Story(workers=2)
    story.etl()
    story.fit(models=2, epochs=1)
    run = story.state.runs["fit-1"]
    object.__setattr__(run.request, "goal", goal)
    return story


def test_worker_hours_include_workers_that_joined_before_the_run() -> None:
    """They count until they are lost, without the run's pauses."""
    story = begun()
    run = story.state.runs["fit-1"]
    assert worker_hours(story.state, run, run.clock.started + 3600) == pytest.approx(2.0)
    story.append(lost(1))
    absent_s = story.state.worker_changes[-1].time - run.clock.started
    expected = (3600 + absent_s) / 3600
    assert worker_hours(story.state, run, run.clock.started + 3600) == pytest.approx(expected)
    story.append(RunPaused(run="fit-1", reason="its budget is spent"), RunResumed(run="fit-1", by="ada"))
    since, until = run.clock.pauses[-1]
    expected -= (until - since) / 3600
    assert worker_hours(story.state, run, run.clock.started + 3600) == pytest.approx(expected)


def test_a_resumed_run_ignores_its_spent_budget() -> None:
    """A resumed run continues without a budget."""
    story = begun(Goal(worker_hours=1.0))
    run = story.state.runs["fit-1"]
    assert spent(story.state, run, run.clock.started + 1000) == ""
    assert "budget of 1 worker-hours is spent" in spent(story.state, run, run.clock.started + 1801)
    run.clock.pauses.append((run.clock.started + 1800.0, run.clock.started + 1900.0))
    assert spent(story.state, run, run.clock.started + 5000) == ""


def test_forecast_lines_state_the_end_and_the_needed_workers() -> None:
    """The expected finish, the effect of more workers, and the requirements of the goal."""
    story = begun(Goal(finish_by=50_000.0))
    story.append(
        ForecastMade(
            run="fit-1",
            workers=2,
            ends=(
                ForecastEnd(2, 90_000, 95_000),
                ForecastEnd(4, 60_000, 63_000),
                ForecastEnd(11, 40_000, 41_000),
            ),
            recommended_workers=4,
            allowed_workers=4,
        )
    )
    run = story.state.runs["fit-1"]
    at = run.scheduling.forecasts[0].time
    ends, short, other = forecast_lines(run, at)
    assert ends.startswith("forecast: ends at ")
    assert ends.endswith("with 2 workers")
    assert "needs 11 workers, or until " in short
    assert short.endswith("; 4 are allowed")
    assert other.startswith("4 workers would end it at ")


@pytest.mark.parametrize(("late_s", "said"), [(40.0, ["ended 40 s later"]), (-5.0, [])])
def test_a_late_run_reports_its_delay(late_s: float, said: list[str]) -> None:
    """No forecast is necessary; a run that met its deadline gets no message."""
    story = begun(Goal(finish_by=1.0))
    story.append(RunFinished(run="fit-1", outcome="finished"))
    run = story.state.runs["fit-1"]
    object.__setattr__(run.request, "goal", Goal(finish_by=run.clock.ended - late_s))
    lines = forecast_lines(run, run.clock.ended)
    assert [line.endswith(text) for line, text in zip(lines, said, strict=True)] == [True] * len(said)
