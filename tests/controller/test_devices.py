"""Workers with several devices: each runs a sub-epoch, and shared resources are respected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import Event, TaskAssigned, TaskStarted
from cerebro.contract.tasks.bodies import EtlTask, TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.scheduling.validator import validate
from cerebro.state import ExperimentState, RunState, schedule_of
from cerebro.state.experiment import fold
from cerebro.state.reports.makespan_bound import lower_bound
from controller.decisions.core import Core
from controller.planning.planner_query import from_json, planner_query, to_json
from research.simulation.cluster import Simulation
from research.simulation.inline import InlinePlanner
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    device_counts,
    own_partition,
    plan,
    request,
    several_devices,
    simulate,
)


def states(simulation: Simulation) -> Iterator[tuple[Event, ExperimentState]]:
    """Yield each event with the state after it. The state object is reused."""
    state = ExperimentState(name=EXPERIMENT)
    for event in simulation.log:
        state.apply(event)
        yield event, state


def test_a_worker_trains_as_many_models_as_it_has_devices() -> None:
    """With enough models, all devices are always busy."""
    scenario = Scenario(
        replicas=own_partition(2), devices=several_devices(4, 2), sub_epoch_time=lambda body, worker: 4.0
    )
    simulation = simulate(scenario, models=12, partitions=2)
    first = [e for e in simulation.log if isinstance(e, TaskStarted) and e.time == 0.0]
    assert Counter(event.worker for event in first) == {"worker-0": 4, "worker-1": 2}
    # 12 sub-epochs of 4 s on the 2 devices of worker-1.
    assert simulation.now == 24.0


def test_two_devices_are_as_fast_as_two_workers() -> None:
    """The two workers of the comparison both hold the partition."""
    one = Scenario(
        replicas={"worker-0": [0, 1]}, devices=several_devices(2), sub_epoch_time=lambda body, worker: 3.0
    )
    two = Scenario(replicas={"worker-0": [0, 1], "worker-1": [0, 1]}, sub_epoch_time=lambda body, worker: 3.0)
    took = [simulate(scenario, models=5, partitions=2, epochs=3).now for scenario in (one, two)]
    assert took[0] <= took[1] == pytest.approx(5 * 2 * 3 * 3.0 / 2)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(1, 2)),
    counts=device_counts,
    faults=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    validated=st.booleans(),
    times=st.randoms(use_true_random=False),
)
def test_a_retry_after_out_of_memory_is_alone_on_its_worker(shape, counts, faults, validated, times) -> None:  # type: ignore[no-untyped-def]
    """The devices share memory, so the retry of a sub-epoch or validation waits until no other task is there.
    It never waits forever."""
    models, workers, epochs = shape

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        sub_epoch = (
            int(getattr(body, "model", "m0")[1:]),
            getattr(body, "sub_epoch", getattr(body, "epoch", 0)),
        )
        is_hit = attempt == 1 and sub_epoch in faults
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory") if is_hit else None

    scenario = Scenario(
        replicas=own_partition(workers),
        devices=several_devices(*counts),
        sub_epoch_time=lambda body, worker: times.uniform(0.5, 4.0),
        outcome=outcome,
    )
    simulation = simulate(scenario, models=models, partitions=workers, epochs=epochs, validated=validated)
    for _, state in states(simulation):
        for worker in state.workers.values():
            tasks = [state.runs["fit-1"].tasks.open[key] for key in worker.open_tasks]
            assert not any(task.exhausted for task in tasks) or len(tasks) == 1
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=epochs, partitions=workers)
    assert_exclusive(simulation)


def test_a_worker_is_kept_free_for_a_waiting_retry() -> None:
    """The retry starts when the other tasks finish, even if much other work is open."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_hit = isinstance(body, TrainTask) and (body.model, body.sub_epoch, attempt) == ("m00", 0, 1)
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory") if is_hit else None

    scenario = Scenario(
        replicas=own_partition(1),
        devices=several_devices(4),
        sub_epoch_time=lambda body, worker: 2.0 if getattr(body, "model", "") == "m00" else 3.0,
        outcome=outcome,
    )
    simulation = simulate(scenario, models=20, partitions=1, epochs=2)
    retry = next(e for e in simulation.log if isinstance(e, TaskStarted) and e.attempt == 2)
    assert retry.task == "fit-1/train/m00/e1/p0"
    assert retry.time <= 6.0


def test_a_partition_is_rebuilt_during_training() -> None:
    """ETL has its own executor, so a training worker rebuilds a lost partition at once."""
    scenario = Scenario(
        replicas={"worker-0": [0], "worker-1": [1]},
        devices=several_devices(2, 2),
        has_pods=True,
        removals={"worker-1": 20.0},
        sub_epoch_time=lambda body, worker: 1.0 if isinstance(body, EtlTask) else 8.0,
    )
    simulation = Simulation(scenario, request(6, 1), plan(6, 2))
    simulation.run()
    assignments = [
        e for e in simulation.log if isinstance(e, TaskAssigned) and e.task.startswith("fit-1/etl")
    ]
    assert [(event.worker, event.devices) for event in assignments] == [("worker-0-etl", ())]
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=2)


@settings(deadline=None, max_examples=15)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 2)),
    counts=device_counts,
    times=st.randoms(use_true_random=False),
)
def test_planner_and_validator_know_the_devices(shape, counts, times) -> None:  # type: ignore[no-untyped-def]
    """The planner's problem includes the devices, and the log is a valid schedule that respects the bound."""
    models, workers, epochs = shape
    cost: dict[tuple[str, str], float] = {}

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        return cost.setdefault((getattr(body, "model", ""), worker), times.uniform(0.5, 4.0))

    scenario = Scenario(
        replicas=own_partition(workers), devices=several_devices(*counts), sub_epoch_time=sub_epoch_time
    )
    process = InlinePlanner(plan_s=0.02, solve_s=0.02)
    simulation = Simulation(scenario, request(models, epochs), plan(models, workers), process)
    simulation.run()
    state = fold(EXPERIMENT, simulation.log)
    run = state.runs["fit-1"]
    assert run.state is RunState.FINISHED
    devices = {name: worker.devices for name, worker in state.workers.items()}
    assert devices == several_devices(*counts[:workers])
    problem, schedule = schedule_of(run, devices)
    report = validate(problem, schedule, actual=True).check()
    assert problem.gpus == tuple(counts[:workers])
    assert lower_bound(run, simulation.now, devices) <= report.makespan * (1 + 1e-9)
    for before, after in pairwise(run.scheduling.epochs):
        assert before.lower_bound_s <= after.lower_bound_s * (1 + 1e-9)
    assert all(epoch.lower_bound_s <= epoch.makespan_s * (1 + 1e-9) for epoch in run.scheduling.epochs)
    core = Core(simulation.store.experiment(EXPERIMENT))
    for event in simulation.log:
        core.apply(event)
        if core.fit is not None and (query := planner_query(core.fit)) is not None:
            assert query.problem.gpus == tuple(counts[:workers])
            assert from_json(to_json(query.problem)).gpus == query.problem.gpus
            busy = core.state.runs["fit-1"].tasks.open.values()
            for name, ready in zip(query.workers, query.problem.gpu_ready, strict=True):
                # A queued task is expected on the device that becomes free first.
                assert sum(map(bool, ready)) <= sum(task.worker == name for task in busy)
