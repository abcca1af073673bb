"""Throughput of a run with concurrent runs of its experiment, and after a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import RunFinished, RunPaused, RunRequested, RunResumed
from cerebro.contract.runs import EvaluateRequest
from cerebro.state.experiment import ExperimentState
from cerebro.state.reports.throughput import ThroughputMeter
from tests.state.runs import TimedStory
from tests.state.stories import Story, sub_epoch

BATCH_S = 0.5


@pytest.mark.parametrize("every", [1, 3])
@given(others=st.integers(0, 4))
def test_concurrent_runs_do_not_distort_throughput(others: int, every: int) -> None:
    """A fit trains 200 rows a second on one worker, next to a prediction with many tasks per sub-epoch."""
    story = Story()
    fit = story.fit(models=1, partitions=1, epochs=1)
    story.append(
        RunRequested(run="predict-1", request=EvaluateRequest(kind="predict", fit="fit-1", split="predict"))
    )
    prediction = story.state.runs["predict-1"]
    meter, now = ThroughputMeter(), fit.clock.started
    for number in range(1000):
        now += BATCH_S
        if number % every == 0:
            began = now - every * BATCH_S
            meter.commit(
                fit, "train", worker="worker-0", started=began, ended=now, rows=round(200 * (now - began))
            )
        for each in range(others):
            meter.commit(
                prediction, "predict", worker=f"worker-{each + 1}", started=now - BATCH_S, ended=now, rows=7
            )
    assert meter.throughput(fit, now).rows_per_s == pytest.approx(200, rel=0.02)


def test_later_process_starts_count_as_work() -> None:
    """Each sub-epoch takes 0.3 s, of which its process takes 0.1 s to start; the first start takes 8 s more."""
    story = Story()
    fit = story.fit(models=1, partitions=1, epochs=1)
    meter, now = ThroughputMeter(), fit.clock.started
    for number in range(100):
        start_s = 8.1 if number == 0 else 0.1
        began, now = now, now + start_s + 0.2
        meter.commit(fit, "train", worker="worker-0", started=began, ended=now, rows=30, start_s=start_s)
    assert meter.throughput(fit, now).rows_per_s == pytest.approx(100, rel=0.02)


def left_s(story: TimedStory, now: float) -> float:
    """Return the fit's remaining seconds, `now` seconds after its start."""
    meter, state = ThroughputMeter(), ExperimentState(name="one")
    for event in story.log:
        meter.observe(state, event)
        state.apply(event)
    left = meter.throughput(state.runs["fit-1"], story.zero + now).time_left
    assert left is not None
    assert left.ends_at == pytest.approx(story.zero + now + left.seconds)
    return left.seconds


@given(
    sub_epochs=st.lists(st.floats(0.5, 200), min_size=1, max_size=8),
    at=st.integers(0, 7),
    stopped_s=st.floats(0, 1e6),
    later_s=st.floats(0.1, 100),
)
def test_time_left_excludes_stopped_time(
    sub_epochs: list[float], at: int, stopped_s: float, later_s: float
) -> None:
    """A stopped and resumed run has the same remaining time as an uninterrupted one."""
    messages = []
    for stopped in (0.0, stopped_s):
        story, time = TimedStory(workers=1), 0.0
        story.fit(models=1, partitions=1, epochs=9)
        for number, seconds in enumerate(sub_epochs):
            story.runs(sub_epoch(number + 1, 0), 0, time, time + seconds)
            time += seconds
            if number == min(at, len(sub_epochs) - 1):
                story.at(time, RunFinished(run="fit-1", outcome="stopped"))
                time += stopped
                story.at(time, RunResumed(run="fit-1"))
        messages.append(left_s(story, time + later_s))
    assert messages[1] == pytest.approx(messages[0], rel=1e-3, abs=1e-3)
    assert messages[0] >= 0


@given(st.floats(0, 1e6))
def test_time_left_is_constant_while_a_run_is_paused(passed: float) -> None:
    """A full disk says nothing about the run's speed."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1, epochs=3)
    story.runs(sub_epoch(1, 0), 0, 0.0, 40.0)
    story.at(40.0, RunPaused(run="fit-1", reason="no room", needs_bytes=1))
    at_once = left_s(story, 40.0)
    assert left_s(story, 40.0 + passed) == at_once
    story.at(40.0 + passed, RunResumed(run="fit-1"))
    assert left_s(story, 40.0 + passed) == pytest.approx(at_once)
