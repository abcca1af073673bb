"""Fused groups: sub-epochs of several models that a device trains as one stack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.contract.parallel_plans import FUSED, SINGLE, ParallelPlan
from cerebro.contract.records import WorkerSetStatus
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.trials import AvailableDevices, DeviceKind, Inspection, KnownParallelPlan, ModelGroup
from cerebro.state import ModelState, Run, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.reports.schedule_report import schedule_now
from cerebro.state.reports.throughput import ThroughputMeter
from controller.sharing import claims
from dispatcher.cluster.summary import summary
from dispatcher.cluster.view import occupied
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_fit_dispatch import all_here, core_of, told_step_by_step
from tests.state.fused import assigned as as_group
from tests.state.fused import started
from tests.state.runs import TimedStory
from tests.state.stories import Story, sub_epoch

_FAULTS = [kind for kind in FailureKind if not kind.traits.fails_run and kind is not FailureKind.PREEMPTED]
"""Failures of one model or worker. A worker that reports a preemption by itself gets no more tasks."""

DEVICE = DeviceKind(kind="gpu", name="virtual")


def fused(models: int) -> ParallelPlan:
    """Return the plan of a stack of at most this many models."""
    return ParallelPlan(technique=FUSED, params={"models": models}, processes="one")


def inspection(*groups: tuple[int, ...], most: int) -> Inspection:
    """Return an inspection with these groups of similar models."""
    known = KnownParallelPlan(id="fused", parallel_plan=fused(most))
    return Inspection(
        groups=tuple(
            ModelGroup(id=f"g{n:02}", models=tuple(f"m{m:02}" for m in models), parallel_plans=(known,))
            for n, models in enumerate(groups)
        ),
        device_kinds=(AvailableDevices(device=DEVICE, max_devices=1),),
    )


def simulation_of(scenario: Scenario, models: int, epochs: int, partitions: int, most: int) -> Simulation:
    """Return a finished simulation of a fit with groups of at most `most` models."""
    plans = (fused(most), SINGLE)
    simulation = Simulation(
        scenario, request(models, epochs), plan(models, partitions, rows=4, parallel_plans=plans)
    )
    simulation.run(limit=20_000)
    return simulation


def fit_of(simulation: Simulation) -> Run:
    """Return the run in its final state."""
    return fold(EXPERIMENT, simulation.log).runs["fit-1"]


def groups_of(simulation: Simulation) -> list[list[str]]:
    """Return the models of each assignment of sub-epochs, in order."""
    found: dict[str, list[str]] = {}
    for event in simulation.log:
        if isinstance(event, TaskAssigned) and (key := TaskKey.parse(event.task)).kind == "train":
            name = event.group.id if event.group is not None else f"{event.task}#{event.attempt}"
            found.setdefault(name, []).append(key.model or "")
    return [*found.values()]


def assert_groups_are_sound(log: Sequence[Event]) -> None:
    """At every moment, a device runs one attempt or one group, and a group has one epoch and partition."""
    running: defaultdict[tuple[str, int], dict[tuple[str, int], str]] = defaultdict(dict)
    assigned: dict[tuple[str, int], TaskAssigned] = {}
    kinds: defaultdict[str, set[tuple[int | None, int | None, str, tuple[int, ...]]]] = defaultdict(set)
    for event in log:
        if isinstance(event, TaskAssigned):
            assigned[event.task, event.attempt] = event
            key = TaskKey.parse(event.task)
            if event.group is not None:
                kinds[event.group.id].add((key.epoch, key.partition, event.worker, event.devices))
        elif isinstance(event, TaskStarted):
            given = assigned[event.task, event.attempt]
            group = given.group.id if given.group is not None else f"{event.task} {event.attempt}"
            for device in given.devices:
                place = running[event.worker, device]
                assert set(place.values()) <= {group}
                place[event.task, event.attempt] = group
        elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
            for place in running.values():
                place.pop((event.task, event.attempt), None)
    assert all(len(found) == 1 for found in kinds.values())


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(2, 7), st.integers(1, 3), st.integers(1, 3)),
    most=st.integers(2, 4),
    devices=st.lists(st.integers(1, 2), max_size=3),
    split=st.integers(1, 7),
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=4),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 6), st.integers(0, 8)),
        st.sampled_from(_FAULTS),
        max_size=4,
    ),
    crashes=st.frozensets(st.integers(1, 120), max_size=3),
    times=st.randoms(use_true_random=False),
)
def test_each_model_trains_on_each_partition_once_per_epoch_in_any_groups(  # type: ignore[no-untyped-def]
    shape, most, devices, split, outages, faults, crashes, times
) -> None:
    """After any losses, failures and crashes, the run ends, devices are exclusive, and the dispatch state is right."""
    models, workers, epochs = shape
    alike = inspection(tuple(range(min(split, models))), tuple(range(min(split, models), models)), most=most)
    scenario = replace(
        disturbed(workers, outages=outages, faults=faults, times=times, devices=devices),
        inspection=alike,
        crash_before=crashes,
    )
    simulation = simulation_of(scenario, models, epochs, workers, most)
    assert told_step_by_step(simulation)
    assert_groups_are_sound(simulation.log)
    for group in groups_of(simulation):
        assert len(group) <= most
        assert len({model < f"m{split:02}" for model in group}) == 1
    run = fit_of(simulation)
    for model in run.models.values():
        if model.state is ModelState.FAILED:
            continue
        assert model.state is ModelState.FINISHED
        for epoch in range(1, epochs + 1):
            trained = [completed.partition for completed in model.sub_epochs if completed.epoch == epoch]
            assert sorted(trained) == list(range(workers))
    committed = Counter(event.task for event in simulation.log if isinstance(event, TaskCommitted))
    assert all(times == 1 for times in committed.values()) or FailureKind.CHECKPOINT in faults.values()


def test_groups_leave_models_for_every_device() -> None:
    """Eight models on two workers train in groups of four, though a stack could take eight."""
    scenario = Scenario(replicas=own_partition(2), inspection=inspection(tuple(range(8)), most=8))
    groups = groups_of(simulation_of(scenario, 8, 2, 2, 8))
    assert Counter(map(len, groups)) == {4: 8}


def test_a_model_without_partners_trains_as_user_code_is_written() -> None:
    """Models of other shapes never join it."""
    scenario = Scenario(replicas=own_partition(1), inspection=inspection((0,), (1, 2), most=4))
    simulation = simulation_of(scenario, 3, 1, 1, 4)
    plans = {
        event.task: event.parallel_plan
        for event in simulation.log
        if isinstance(event, TaskAssigned) and "/train/" in event.task
    }
    assert {TaskKey.parse(task).model: plan for task, plan in plans.items()} == {
        "m00": None,
        "m01": fused(4),
        "m02": fused(4),
    }


def test_a_failure_of_one_model_leaves_the_others_of_its_group_alone() -> None:
    """The model fails by itself; the others commit the same attempt."""
    scenario = disturbed(1, outages=(), faults={(1, 0): FailureKind.NON_FINITE}, times=Random(1))
    simulation = simulation_of(replace(scenario, inspection=inspection((0, 1, 2), most=4)), 3, 2, 1, 4)
    run = fit_of(simulation)
    assert [model.state for model in run.models.values()] == ["finished", "failed", "finished"]
    assert groups_of(simulation) == [["m00", "m01", "m02"], ["m00", "m02"]]


def test_models_that_fail_in_a_group_go_on_alone() -> None:
    """What a stack refuses rules the plan out for these models without a charged attempt."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_fused = isinstance(body, TrainTask) and body.parallel_plan is not None
        return Failure(kind=FailureKind.NOT_APPLICABLE, message="LSTM") if is_fused else None

    scenario = Scenario(replicas=own_partition(1), outcome=outcome, inspection=inspection((0, 1, 2), most=4))
    simulation = simulation_of(scenario, 3, 2, 1, 4)
    run = fit_of(simulation)
    assert all(model.state is ModelState.FINISHED for model in run.models.values())
    assert [[*model.failures.ruled_out] for model in run.models.values()] == [["fused(models=4)"]] * 3
    assert {len(group) for group in groups_of(simulation)[1:]} == {1}


def test_a_run_that_no_worker_can_inspect_trains_without_groups() -> None:
    """The kind of the worker's devices is unknown, so an inspection would try nothing."""
    story = Story(workers=1)
    story.fit(models=2, partitions=1, parallel_plans=(fused(4), SINGLE))
    steps = core_of(story).decide(all_here(story))
    assert [getattr(step, "fused", None) for step in steps] == [(), ()]
    assert {getattr(step, "task", "") for step in steps} == {
        str(sub_epoch(1, 0, name)) for name in ("m00", "m01")
    }


def device_counts(models: int, *, is_over: bool) -> dict[str, object]:
    """Return what is counted per device, for a process that starts in 2 s and trains these models together in 10 s."""
    story, keys = TimedStory(workers=1), [sub_epoch(1, 0, f"m{number:02}") for number in range(models)]
    run, now = story.fit(models=4, partitions=1, epochs=1), story.zero + 12.0
    if models > 1:
        story.at(0, *as_group(story, keys))
        story.at(0, *started(story, keys))
    else:
        story.begins(keys[0], 0, 0.0)
    for key in keys if is_over else ():
        story.ends(key, 0, 12.0, start_s=2.0)
    meter = ThroughputMeter()
    meter.recall(story.state)
    schedule, claim = schedule_now(story.state, run, now), claims.claim(story.state, run, None, now)
    assert schedule is not None
    page = summary(story.state, worker_set_status=WorkerSetStatus(), begin=story.zero, now=now)
    throughput = meter.throughput(run, now)
    return {
        "report": (schedule.device_s, schedule.idle_s, schedule.start_s, schedule.makespan_s),
        "trained": sum(run.device_time.trained_s.values()),
        "throughput": (throughput.over_s, throughput.rows_per_s / models),
        "page": occupied([*page.busy["worker-0"]], story.zero, now, devices=2),
        "claim": (claim.ahead_s, claim.sub_epoch_s, claim.start_s),
        "full slots": len(claim.holds - claims.ending(story.state, run, None, now)),
    }


@pytest.mark.parametrize("is_over", [False, True])
def test_the_devices_of_a_group_count_once(is_over: bool) -> None:
    """Three models that share one of two devices use it as long as one model."""
    together, alone = (device_counts(models, is_over=is_over) for models in (3, 1))
    for name, counted in alone.items():
        assert together[name] == pytest.approx(counted), name
