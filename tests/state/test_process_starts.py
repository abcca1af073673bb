"""Process start-up is measured separately and excluded from makespan, bound and gap."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.validator import validate
from cerebro.state import epoch_report, schedule_now, schedule_of
from cerebro.state.experiment import fold
from tests.state.runs import TimedStory, dispatched
from tests.state.stories import sub_epoch

IMPORTS_S = 8.0


def started_cold(start_s: float) -> TimedStory:
    """Two models on two workers, one epoch; each worker's first sub-epoch waits for its process.

    Without the wait, worker 0: m00 0-2, m01 2-4. Worker 1: m01 0-1, idle until m00 arrives, m00 2-4.
    """
    story = TimedStory()
    story.fit(epochs=1)
    story.begins(sub_epoch(1, 0), 0, 0.0)
    story.runs(sub_epoch(1, 1, "m01"), 1, 0.0, start_s + 1.0, start_s)
    story.ends(sub_epoch(1, 0), 0, start_s + 2.0, start_s)
    story.begins(sub_epoch(1, 1), 1, start_s + 2.0)
    story.runs(sub_epoch(1, 0, "m01"), 0, start_s + 2.0, start_s + 4.0)
    story.ends(sub_epoch(1, 1), 1, start_s + 4.0)
    return story


@pytest.mark.parametrize("start_s", [0.0, IMPORTS_S])
def test_process_starts_do_not_count_against_the_schedule(start_s: float) -> None:
    """Makespan, bound, gap and idle time are equal; start-up time is reported separately."""
    story = started_cold(start_s)
    report = epoch_report(story.state, story.run, 1)
    assert (report.makespan_s, report.lower_bound_s) == pytest.approx((4.0, 4.0))
    assert report.idle_s == pytest.approx({"worker-0": 0.0, "worker-1": 1.0})
    assert report.start_s == 2 * start_s
    now = schedule_now(story.state, story.run, story.time)
    assert now is not None
    assert (now.makespan_s, now.lower_bound_s, now.gap) == pytest.approx((4.0, 4.0, 0.0))
    assert (now.idle_s, now.device_s, now.start_s) == pytest.approx((1.0, 8.0, 2 * start_s))


@given(
    seed=st.integers(0, 1000),
    models=st.integers(1, 4),
    partitions=st.integers(1, 4),
    delay=st.sampled_from([0.0, 1.0]),
)
@settings(deadline=None, max_examples=40)
def test_the_validator_agrees_with_the_report(seed: int, models: int, partitions: int, delay: float) -> None:
    """For any start-up times and at any moment, the bound is at most the makespan and no rule is broken."""
    dispatches = dispatched(
        Random(seed), models=models, partitions=partitions, epochs=2, delay=delay, start_s=IMPORTS_S
    )
    for length in range(len(dispatches.log)):
        state = fold("one", dispatches.log[:length])
        run = state.runs.get("fit-1")
        found = schedule_now(state, run, dispatches.log[length - 1].time) if run else None
        if found is not None:
            assert found.lower_bound_s <= found.makespan_s * (1 + 1e-9)
            assert found.idle_s <= found.device_s * (1 + 1e-9)
    judged = validate(*schedule_of(dispatches.run), actual=True)
    last = schedule_now(dispatches.state, dispatches.run, dispatches.time)
    assert last is not None
    assert not judged.violations
    assert (last.makespan_s, last.lower_bound_s) == pytest.approx((judged.makespan, judged.lower_bound))
