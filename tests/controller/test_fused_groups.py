"""Fused groups: sub-epochs of several models that a device trains as one stack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.contract.parallel_plans import FUSED, SINGLE, ParallelPlan
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.trials import AvailableDevices, DeviceKind, Inspection, KnownParallelPlan, ModelGroup
from cerebro.state import ModelState, Run, TaskKey
from cerebro.state.experiment import fold
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_fit_dispatch import told_step_by_step

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


def test_the_devices_of_a_group_count_once() -> None:
    """Three models of 6 s each share one device: together they used it for 6 s."""
    scenario = Scenario(
        replicas=own_partition(1),
        sub_epoch_time=lambda body, worker: 6.0 if isinstance(body, TrainTask) else 0.0,
        inspection=inspection((0, 1, 2), most=4),
    )
    run = fit_of(simulation_of(scenario, 3, 1, 1, 4))
    assert run.device_time.trained_s["worker-0"] < 6.5
    assert all(model.effort.trained_s >= 6.0 for model in run.models.values())
