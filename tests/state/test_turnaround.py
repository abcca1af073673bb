"""The pause between two sub-epochs is measured and included in forecasts."""

from __future__ import annotations

import pytest

from cerebro.contract.events import ForecastMade, RunFinished, RunPaused, RunResumed
from cerebro.contract.runs import ForecastEnd
from cerebro.state import RunState
from cerebro.state.reports.throughput import FORECAST, ThroughputMeter, forecast_left
from cerebro.state.reports.turnaround import turnaround_s
from cerebro.state.runs.goals import forecast_lines
from tests.state.runs import TimedStory
from tests.state.stories import sub_epoch


def hopping(pause: float, *, took: float = 0.1, epochs: int = 6) -> TimedStory:
    """Alternate two models between two workers, with a `pause` before each sub-epoch."""
    story = TimedStory(workers=2)
    story.fit(models=2, epochs=epochs + 1)
    at = 200.0
    for epoch in range(1, epochs + 1):
        for turn in range(2):
            keys = {(model + turn) % 2: f"m{model:02}" for model in range(2)}
            for partition, model in keys.items():
                story.begins(sub_epoch(epoch, partition, model), partition, at)
            for partition, model in keys.items():
                story.ends(sub_epoch(epoch, partition, model), partition, at + took)
            at += took + pause
    return story


@pytest.mark.parametrize("pause", [0.0, 0.9])
def test_the_pause_between_sub_epochs_is_measured(pause: float) -> None:
    assert turnaround_s(hopping(pause).run) == pytest.approx(pause, abs=1e-9)


def test_time_left_includes_the_pause_between_sub_epochs() -> None:
    """The longest model has two sub-epochs of 0.1 s left, with a pause of 0.9 s before each."""
    story = hopping(0.9)
    meter = ThroughputMeter()
    meter.recall(story.state)
    left = meter.throughput(story.run, story.time).time_left
    assert left is not None
    assert left.seconds >= 2.0 - 1e-6


def forecast(story: TimedStory, seconds: float) -> None:
    end = ForecastEnd(workers=2, p50_s=seconds, p90_s=2 * seconds)
    story.append(ForecastMade(run="fit-1", workers=2, ends=(end,)))


def test_a_valid_forecast_decides_the_time_left() -> None:
    """It expires when its predicted time passes, or after a pause of the run."""
    story = hopping(0.9)
    forecast(story, 50.0)
    time = story.time
    meter = ThroughputMeter()
    meter.recall(story.state)
    left = meter.throughput(story.run, time + 10).time_left
    assert left is not None
    assert left.basis == FORECAST
    assert left.ends_at == pytest.approx(time + 50.0)
    assert left.seconds == pytest.approx(40.0)
    assert forecast_left(story.run, time + 50.0) is None
    assert forecast_lines(story.run, time + 60.0)[0].startswith("forecast: was to end at")
    story.append(RunPaused(run="fit-1", reason="no room", needs_bytes=1))
    assert forecast_left(story.run, time + 10) is None
    story.append(RunResumed(run="fit-1"))
    assert story.run.state is RunState.RUNNING
    assert forecast_left(story.run, time + 10) is None


@pytest.mark.parametrize(("outcome", "says"), [("stopped", "was stopped at"), ("failed", "failed at")])
def test_a_run_that_was_cut_short_is_not_called_early(outcome: str, says: str) -> None:
    """It did not do all work, so the comparison is skipped."""
    story = hopping(0.9)
    forecast(story, 5_000.0)
    story.append(RunFinished.model_validate({"run": "fit-1", "outcome": outcome, "error": "x"}))
    (line,) = forecast_lines(story.run, story.time)
    assert says in line
    assert "sooner" not in line
