"""Schedule quality of a run, computed from its log."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import DevicesTaken, EpochCompleted, RunFinished, SchedulePlanned
from cerebro.contract.runs import PlannedSubEpoch, TakenSpan
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import InstanceError
from cerebro.scheduling.validator import validate
from cerebro.state import Run, epoch_report, schedule_lines, schedule_now, schedule_of
from cerebro.state.experiment import fold
from cerebro.state.reports.makespan_bound import least_s
from cerebro.state.reports.timeline import committed
from cerebro.state.runs.parts.clock import RunClock
from tests.state.runs import TimedStory, dispatched
from tests.state.stories import joined, lost, sub_epoch

RUNS = st.builds(
    lambda seed, models, partitions, epochs, delay, start_s: dispatched(
        Random(seed), models=models, partitions=partitions, epochs=epochs, delay=delay, start_s=start_s
    ),
    st.integers(0, 1000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 8.0]),
)  # fmt: skip


def two_models() -> TimedStory:
    """Two models on two workers and two epochs; m00 takes 4 s per sub-epoch, m01 1 s; one epoch each is done.

    Worker 0: m00 0-4, m01 4-5, idle, m01 5-6 (epoch 2). Worker 1: m01 0-1, idle 1-4, m00 4-8.
    """
    story = TimedStory()
    story.fit()
    story.begins(sub_epoch(1, 0), 0, 0.0)
    story.runs(sub_epoch(1, 1, "m01"), 1, 0.0, 1.0)
    story.ends(sub_epoch(1, 0), 0, 4.0)
    story.begins(sub_epoch(1, 1), 1, 4.0)
    story.runs(sub_epoch(1, 0, "m01"), 0, 4.0, 5.0)
    story.runs(sub_epoch(2, 0, "m01"), 0, 5.0, 6.0)
    story.ends(sub_epoch(1, 1), 1, 8.0)
    return story


def facts(report: EpochCompleted) -> tuple[float, float, dict[str, float]]:
    return report.makespan_s, report.lower_bound_s, report.idle_s


@settings(deadline=None)
@given(seconds=st.lists(st.integers(1, 500), max_size=2))
def test_failed_attempts_are_reported_and_make_up_the_gap(seconds: list[int]) -> None:
    """With one model on one worker, the makespan is the bound plus the failed attempts."""
    story = TimedStory()
    story.fit(models=1, partitions=1, epochs=1)
    now = 0.0
    for each in seconds:
        story.begins(sub_epoch(1, 0), 0, now)
        now += each
        story.time = story.zero + now - 1.0
        story.break_off(sub_epoch(1, 0), 0, story.attempt(sub_epoch(1, 0)) - 1, FailureKind.CRASH)
    story.runs(sub_epoch(1, 0), 0, now, now + 4.0)
    found = schedule_now(story.state, story.run, now + 4.0)
    assert found is not None
    assert found.lower_bound_s == 4.0
    assert found.lost_s == found.makespan_s - found.lower_bound_s == sum(seconds)
    messages = [
        line for line in schedule_lines(story.state, story.run, now + 4.0) if "did not commit" in line
    ]
    assert len(messages) == bool(seconds)


def test_a_worker_is_idle_only_while_it_is_registered() -> None:
    """A lost worker counts until its loss, a joining worker from its join, a worker without partitions never."""
    story = TimedStory()
    story.fit(models=1, partitions=1, epochs=1)
    story.at(-1.0, joined(3, partitions=()))
    story.begins(sub_epoch(1, 0), 0, 0.0)
    story.at(3.0, lost(1))
    story.at(6.0, joined(2, partitions=(0,)))
    story.ends(sub_epoch(1, 0), 0, 10.0)
    story.append(lost(2), joined(2, partitions=(0,)))
    assert epoch_report(story.state, story.run, 1).idle_s == {"worker-0": 0.0}
    story = TimedStory()
    story.fit(models=1, partitions=2, epochs=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 4.0)
    story.at(5.0, lost(0), joined(2, partitions=(0, 1)))
    story.runs(sub_epoch(1, 1), 1, 6.0, 10.0)
    assert epoch_report(story.state, story.run, 1).idle_s == {
        "worker-0": 1.0,
        "worker-1": 6.0,
        "worker-2": 5.0,
    }


def test_sub_epochs_of_a_failed_model_count() -> None:
    """The epoch lasts until the last commit of any model, and no bound exceeds the makespan."""
    story = TimedStory()
    story.fit(partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 1.0)
    story.runs(sub_epoch(2, 0), 0, 1.0, 2.0)
    story.runs(sub_epoch(1, 0, "m01"), 0, 2.0, 9.0)
    story.fail(sub_epoch(2, 0, "m01"), 0, FailureKind.USER_ERROR)
    story.report(1)
    assert facts(story.run.scheduling.epochs[0]) == (9.0, 9.0, {"worker-0": 0.0})
    assert facts(epoch_report(story.state, story.run, 2))[:2] == (9.0, 9.0)


def test_a_run_without_a_sub_epoch_has_no_schedule() -> None:
    """Either no sub-epoch has started, or all models failed at once."""
    story = TimedStory()
    story.fit(models=1)
    assert schedule_now(story.state, story.run, story.time) is None
    assert schedule_lines(story.state, story.run, story.time) == []
    story.fail(sub_epoch(1, 0), 0, FailureKind.USER_ERROR)
    assert facts(epoch_report(story.state, story.run, 1)) == (0.0, 0.0, {})
    with pytest.raises(InstanceError, match="no sub-epoch of fit-1 is committed yet"):
        schedule_of(story.run)


def test_running_sub_epochs_count_up_to_now() -> None:
    """The makespan grows, the bound includes running sub-epochs, and idle time covers all workers."""
    story = two_models()
    story.begins(sub_epoch(2, 0), 0, 8.0)
    found = schedule_now(story.state, story.run, story.zero + 10.0)
    assert found is not None
    assert (found.makespan_s, found.lower_bound_s) == (10.0, 10.0)
    assert (found.idle_s, found.device_s, found.idle_share) == (7.0, 20.0, 0.35)
    assert (found.epoch, found.epochs, found.is_growing) == (2, 2, True)
    story.report(1)
    assert schedule_now(story.state, story.run, story.zero + 10.0) == found


def test_schedule_lines_state_makespan_bound_idle_time_and_plan() -> None:
    """One line describes the schedule, another the active plan."""
    story = two_models()
    plan = SchedulePlanned(
        run="fit-1",
        source="planner/cyclic",
        order=(PlannedSubEpoch("worker-0", "m00", 2, 0, 0.0),),
        makespan_s=12.1,
        dispatch_s=13.4,
        lower_bound_s=12.0,
        seconds=0.5,
    )
    story.append(plan)
    assert schedule_lines(story.state, story.run, story.zero + 10.0) == [
        "schedule: 10.0 s so far, at best 8.0 s (gap 25.0 %), idle 9.0 s of 20.0 device-seconds; epoch 2 of 2",
        "follows a plan of planner/cyclic: 12.1 s instead of 13.4 s",
    ]
    story.append(RunFinished(run="fit-1", outcome="stopped"))
    assert schedule_lines(story.state, story.run, story.zero + 10.0)[1].startswith("followed a plan of")


@given(RUNS)
@settings(deadline=None, max_examples=40)
def test_no_run_beats_its_bound(story: TimedStory) -> None:
    """The same is true for each epoch; makespans and bounds never shrink."""
    reports = story.run.scheduling.epochs
    assert len(reports) == max(model.epochs for model in story.run.models.values())
    for report in reports:
        assert 0 < report.lower_bound_s <= report.makespan_s * (1 + 1e-9)
    assert reports == sorted(reports, key=lambda report: (report.makespan_s, report.lower_bound_s))


@given(RUNS)
@settings(deadline=None, max_examples=40)
def test_work_and_idle_time_add_up_to_the_makespan(story: TimedStory) -> None:
    """Idle time, sub-epochs and start-up time add up to each worker's makespan."""
    makespan = story.run.scheduling.epochs[-1].makespan_s
    for worker in story.state.workers:
        idle = sum(report.idle_s[worker] for report in story.run.scheduling.epochs)
        work = sum(sub_epoch.seconds for sub_epoch in committed(story.run) if sub_epoch.worker == worker)
        zero = story.run.zero
        starts = sum(
            max(0.0, to - max(zero, since))
            for name, since, to, _ in story.run.device_time.starts
            if name == worker
        )
        assert idle + work + starts == pytest.approx(makespan)


@given(RUNS)
@settings(deadline=None, max_examples=40)
def test_the_validator_needs_only_the_log(story: TimedStory) -> None:
    """A replayed run breaks no rule; makespan and bound equal the last epoch report."""
    run = fold("one", story.log).runs["fit-1"]
    report = validate(*schedule_of(run), actual=True)
    assert report.violations == ()
    assert report.makespan == pytest.approx(run.scheduling.epochs[-1].makespan_s)
    assert report.lower_bound == pytest.approx(run.scheduling.epochs[-1].lower_bound_s)


def taken(*spans: tuple[int, float, float], zero: float, until: float) -> DevicesTaken:
    """Other runs used the first device of these workers during these spans."""
    found = tuple(TakenSpan(f"worker-{worker}", 0, zero + since, zero + end) for worker, since, end in spans)
    return DevicesTaken(run="fit-1", until=zero + until, spans=found)


def test_devices_used_by_other_runs_are_not_idle_time() -> None:
    """It is not idle time, and the run's own work still fits."""
    story = two_models()
    before = schedule_now(story.state, story.run, story.zero + 8.0)
    assert before is not None
    assert (before.lower_bound_s, before.idle_s, before.taken_s) == (8.0, 5.0, 0.0)
    story.append(taken((0, 6.0, 8.0), (1, 1.0, 3.5), zero=story.zero, until=8.0))
    found = schedule_now(story.state, story.run, story.zero + 8.0)
    assert found is not None
    assert (found.idle_s, found.taken_s) == (0.5, 4.5)
    assert found.device_s == before.device_s - 4.5
    assert found.lower_bound_s == 8.0
    assert facts(epoch_report(story.state, story.run, 1)) == (8.0, 8.0, {"worker-0": 0.0, "worker-1": 0.5})
    lines = schedule_lines(story.state, story.run, story.zero + 8.0)
    assert any("other runs had 4.5 device-seconds" in line for line in lines)


def test_the_bound_excludes_devices_used_by_other_runs() -> None:
    """One model on one worker that others used for 6 s: the run cannot finish before 10 s."""
    story = TimedStory(workers=1)
    story.fit(models=1, partitions=1)
    story.runs(sub_epoch(1, 0), 0, 0.0, 2.0)
    story.runs(sub_epoch(2, 0), 0, 8.0, 10.0)
    now = story.zero + 10.0
    bare = schedule_now(story.state, story.run, now)
    assert bare is not None
    assert bare.gap == pytest.approx(1.5)
    story.append(taken((0, 2.0, 8.0), zero=story.zero, until=10.0))
    found = schedule_now(story.state, story.run, now)
    assert found is not None
    assert (found.lower_bound_s, found.gap, found.idle_s) == (10.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.floats(1, 20), st.floats(25, 50)), min_size=1, max_size=40))
def test_adjacent_spans_of_other_runs_are_merged(notes: list[tuple[float, float]]) -> None:
    """Notes arrive once a minute, and merging keeps long runs cheap to judge. Gaps between spans stay."""
    story = TimedStory(workers=2)
    story.fit(models=2)
    story.runs(sub_epoch(1, 0), 0, 0.0, 1.0)
    for number, (since, end) in enumerate(notes):
        begin = 60.0 * number
        spans = (0, begin + since, begin + end), (1, begin, begin + 60.0)
        story.append(taken(*spans, zero=story.zero, until=begin + 60.0))
    assert [len(story.run.device_time.taken[f"worker-{number}"]) for number in range(2)] == [len(notes), 1]
    found = [
        story.run.device_time.taken_s(
            f"worker-{number}", story.zero, story.zero + 60.0 * len(notes), story.run.clock
        )
        for number in range(2)
    ]
    assert found == pytest.approx([sum(end - since for since, end in notes), 60.0 * len(notes)])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 100), st.floats(0, 20)), max_size=12),
    st.dictionaries(st.integers(0, 2), st.floats(0.5, 50), min_size=1),
    st.integers(1, 3),
)
def test_more_use_by_other_runs_never_lowers_the_bound(
    given_: list[tuple[int, float, float]], work: dict[int, float], devices: int
) -> None:
    """The bound is between the one without others and the one with all their time at the start."""
    run = Run(id="fit-1", request=two_models().run.request, clock=RunClock(first_work=0.0))
    busy = {f"worker-{number}": seconds for number, seconds in work.items()}
    places = dict.fromkeys(busy, devices)
    longest = {"m00": max(work.values()) / devices}
    found = [least_s(run, longest, busy, places)]
    for worker, since, seconds in given_:
        run.device_time.taken.setdefault(f"worker-{worker}", []).append(
            TakenSpan(f"worker-{worker}", 0, since, since + seconds)
        )
        found.append(least_s(run, longest, busy, places))
    assert all(later >= earlier - 0.01 for earlier, later in pairwise(found))
    assert found[-1] <= found[0] + sum(seconds for *_, seconds in given_) + 0.01
