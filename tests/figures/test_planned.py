"""Planned sub-epochs: in plan order, not before now, and without overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import ModelStopRequested, RunFinished, RunStopRequested, SchedulePlanned
from cerebro.contract.runs import PlannedSubEpoch
from cerebro.figures import PlannedSpan, planned
from tests.state.stories import Story, sub_epoch

# Two models hop between two workers; the second epoch of m01 comes after a pause.
ORDER = (
    PlannedSubEpoch("worker-0", "m00", 1, 0, 0.0),
    PlannedSubEpoch("worker-1", "m01", 1, 1, 0.0),
    PlannedSubEpoch("worker-0", "m01", 1, 0, 3.0),
    PlannedSubEpoch("worker-1", "m00", 1, 1, 3.0),
    PlannedSubEpoch("worker-0", "m00", 2, 0, 6.0),
    PlannedSubEpoch("worker-1", "m01", 2, 1, 8.0),
)
END_S = 10.0


def story(order: tuple[PlannedSubEpoch, ...] = ORDER) -> Story:
    """A fit with a plan before its first sub-epoch."""
    story = Story()
    story.fit()
    story.append(
        SchedulePlanned(
            run="fit-1", source="planner/cyclic", order=order, makespan_s=END_S, dispatch_s=11.0,
            lower_bound_s=9.0, seconds=0.1,
        )
    )  # fmt: skip
    return story


def span_rows(found: list[PlannedSpan]) -> list[tuple[str, str, float, float]]:
    return [(each.worker, each.model, each.start_s, each.end_s) for each in found]


def test_before_the_first_sub_epoch_the_plan_starts_now() -> None:
    """A sub-epoch lasts until its worker's or model's next one starts, or until the end of the plan."""
    run_story = story()
    assert span_rows(planned(run_story.run, run_story.time)) == [
        ("worker-0", "m00", 0.0, 3.0),
        ("worker-1", "m01", 0.0, 3.0),
        ("worker-0", "m01", 3.0, 6.0),
        ("worker-1", "m00", 3.0, 6.0),
        ("worker-0", "m00", 6.0, 10.0),
        ("worker-1", "m01", 8.0, 10.0),
    ]


def test_planned_sub_epochs_use_the_first_free_device() -> None:
    """In parallel up to the number of devices."""
    order = tuple(PlannedSubEpoch("worker-0", f"m0{number}", 1, 0, 0.0) for number in range(3))
    story = Story(devices=2)
    story.fit(models=3)
    story.append(
        SchedulePlanned(
            run="fit-1", source="planner/cyclic", order=order, makespan_s=4.0, dispatch_s=11.0,
            lower_bound_s=9.0, seconds=0.1,
        )
    )  # fmt: skip
    found = planned(story.run, story.time, devices={"worker-0": 2})
    assert [(each.device, each.start_s, each.end_s) for each in found] == [(0, 0, 4), (1, 0, 4), (0, 4, 8)]


def test_started_sub_epochs_leave_the_plan_and_delay_the_rest() -> None:
    """Times count from the first sub-epoch; a running one blocks its worker and its model."""
    run_story = story()
    run_story.start(sub_epoch(1, 0), 0)
    run_story.start(sub_epoch(1, 1, "m01"), 1)
    found = planned(run_story.run, run_story.time)
    assert [(each.model, each.epoch, each.partition) for each in found] == [
        ("m01", 1, 0),
        ("m00", 1, 1),
        ("m00", 2, 0),
        ("m01", 2, 1),
    ]
    begun = run_story.run.tasks.open[str(sub_epoch(1, 1, "m01"))].attempts[-1].started
    assert found[0].start_s == begun + 3.0 - run_story.run.clock.first_start


def test_an_unused_plan_is_not_shown() -> None:
    """No plan, an abandoned plan, stopped models, an ended run."""
    without = Story()
    without.fit()
    assert planned(without.run, without.time) == []
    assert planned(story(()).run, 0.0) == []
    run_story = story()
    run_story.append(ModelStopRequested(run="fit-1", model="m00"))
    assert {each.model for each in planned(run_story.run, run_story.time)} == {"m01"}
    run_story.append(RunStopRequested(run="fit-1"))
    run_story.append(RunFinished(run="fit-1", outcome="stopped"))
    assert planned(run_story.run, run_story.time) == []


@given(st.floats(0.0, 50.0), st.integers(0, 4))
def test_no_worker_and_no_model_has_two_sub_epochs_at_once(later_s: float, begun: int) -> None:
    """For any delay and any progress."""
    run_story = story()
    for each in ORDER[:begun]:
        run_story.train(each.epoch, each.partition, model=each.model)
    found = planned(run_story.run, run_story.time + later_s)
    for key in ("worker", "model"):
        for name in {getattr(each, key) for each in found}:
            mine = [each for each in found if getattr(each, key) == name]
            assert all(after.start_s >= before.end_s - 1e-6 for before, after in pairwise(mine))
    now_s = run_story.time + later_s - run_story.run.clock.first_start if begun else 0.0
    assert all(each.start_s >= now_s - 1e-6 for each in found)
