"""Sub-epochs that need more memory than workers have: placement and final failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskFailed, TaskGivenUp, WorkerRemoved
from cerebro.contract.parallel_plans import SINGLE, MemoryKind, ParallelPlan
from cerebro.contract.records import (
    PodRef,
    Replica,
    WorkerRecord,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ModelState, RunState, TaskKey
from cerebro.state.experiment import fold
from controller.exclusions.memory_needs import hopeless
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView, worker_view
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import assert_complete, assert_exclusive, plan, request
from tests.controller.test_fused_groups import fused
from tests.state.stories import DATASET, Story, sub_epoch

GIB = 1 << 30


def needing(
    needs: Mapping[str, float],
    memory: Mapping[str, float],
    kind: str = "train",
    memory_kind: MemoryKind = "host",
) -> Callable[[TaskBody, int, str], Failure | None]:
    """Tasks of these models fail where memory (GiB) is below the need, and report it."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        need = needs.get(getattr(body, "model", ""), 0.0)
        if body.kind != kind or need <= memory[worker]:
            return None
        return Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message="killed by the kernel for lack of memory",
            memory_kind=memory_kind,
            limit_bytes=int(memory[worker] * GIB),
        )

    return outcome


def of_memory(memory: Mapping[str, float]) -> dict[str, int]:
    return {name: int(each * GIB) for name, each in memory.items()}


def everywhere(workers: int, partitions: int) -> dict[str, list[int]]:
    return {f"worker-{number}": [*range(partitions)] for number in range(workers)}


def failures(simulation: Simulation) -> Counter[str]:
    """Count the failures of each task."""
    return Counter(event.task for event in simulation.log if isinstance(event, TaskFailed))


@pytest.mark.parametrize("memory_kind", ["host", "device"])
def test_equal_limits_allow_one_more_attempt_and_the_failure_names_the_need(memory_kind: MemoryKind) -> None:
    """The second attempt runs alone; then the failure names the need, the available memory and the value to raise."""
    memory = {"worker-0": 8.0, "worker-1": 8.0, "worker-2": 8.0}
    known = {"memory" if memory_kind == "host" else "device_memory": of_memory(memory)}
    scenario = Scenario(
        replicas=everywhere(3, 2),
        outcome=needing({"m00": 9.0}, memory, memory_kind=memory_kind),
        **known,  # type: ignore[arg-type]
    )
    simulation = Simulation(scenario, request(3, 2), plan(3, 2))
    simulation.run()
    state = fold(EXPERIMENT, simulation.log)
    run = state.runs["fit-1"]
    assert [*failures(simulation).values()] == [2]
    assert {name for name, model in run.models.items() if model.state is ModelState.FAILED} == {"m00"}
    failure = run.models["m00"].failures.final
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "m00 needs about 10Gi" in failure.message  # 1.25 x 8, because no peak was measured
    assert (
        "the most that a worker which could do this has is 8Gi (worker-0, worker-1, worker-2)"
        in failure.message
    )
    raised = "worker.resources.worker.limits.memory" if memory_kind == "host" else "CEREBRO_DEVICE_MEMORY"
    assert raised in failure.message
    assert "10.75Gi" in failure.message
    assert "killed by the kernel" in failure.message
    assert_complete(state, epochs=2, partitions=2)
    assert_exclusive(simulation)


def test_a_sub_epoch_waits_for_a_worker_with_enough_memory() -> None:
    """An outage neither fails the model nor uses attempts."""
    memory = {"worker-0": 4.0, "worker-1": 16.0}
    scenario = Scenario(
        replicas=everywhere(2, 1),
        outcome=needing({"m00": 9.0}, memory),
        memory=of_memory(memory),
        outages=[WorkerOutage(worker="worker-1", start=0.5, length=300.0)],
    )
    simulation = Simulation(scenario, request(2, 1), plan(2, 1))
    simulation.run()
    assert max(failures(simulation).values(), default=0) <= 2
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=1)
    assert not [event for event in simulation.log if isinstance(event, TaskGivenUp)]


def test_a_sub_epoch_fails_after_the_worker_with_enough_memory_is_removed() -> None:
    """No run waits for a removed worker."""
    memory = {"worker-0": 4.0, "worker-1": 16.0}
    scenario = Scenario(
        replicas=everywhere(2, 1),
        outcome=needing({"m00": 9.0}, memory),
        memory=of_memory(memory),
        outages=[WorkerOutage(worker="worker-1", start=0.5, length=300.0)],
        removals={"worker-1": 60.0},
    )
    simulation = Simulation(scenario, request(2, 1), plan(2, 1))
    simulation.run()
    removed = next(event.time for event in simulation.log if isinstance(event, WorkerRemoved))
    (given_up,) = (event for event in simulation.log if isinstance(event, TaskGivenUp))
    assert 0 <= given_up.time - removed < 5.0
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].models["m00"].state is ModelState.FAILED
    assert state.runs["fit-1"].models["m01"].state is ModelState.FINISHED


def test_a_validation_that_lacks_memory_fails_its_model_alone() -> None:
    """Its model fails and the others continue."""
    memory = {"worker-0": 8.0, "worker-1": 8.0}
    outcome = needing({"m01": 20.0}, memory, kind="valid")
    scenario = Scenario(replicas=everywhere(2, 2), outcome=outcome, memory=of_memory(memory))
    simulation = Simulation(scenario, request(3, 2), plan(3, 2, validated=True))
    simulation.run()
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert max(failures(simulation).values()) == 2
    assert {name for name, model in run.models.items() if model.state is ModelState.FAILED} == {"m01"}
    assert run.state is RunState.FINISHED


def test_another_parallel_plan_is_tried_first() -> None:
    """The model continues with a plan that needs less memory; after the last plan, the failure lists each."""
    lean = ParallelPlan(technique="lean", size=1)
    memory = {"worker-0": 8.0, "worker-1": 8.0}

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        parallel_plan = getattr(body, "parallel_plan", None) or SINGLE
        needs = {"m00": 9.0 if parallel_plan.is_single else 1.0, "m01": 9.0}
        return needing(needs, memory)(body, attempt, worker)

    scenario = Scenario(replicas=everywhere(2, 2), outcome=outcome, memory=of_memory(memory))
    simulation = Simulation(scenario, request(3, 1), plan(3, 2, parallel_plans=(SINGLE, lean)))
    simulation.run()
    models = fold(EXPERIMENT, simulation.log).runs["fit-1"].models
    assert models["m00"].state is ModelState.FINISHED
    assert models["m01"].state is ModelState.FAILED
    failure = models["m01"].failures.final
    assert failure is not None
    assert "no parallel plan is left to train m01" in failure.message
    # Tables show the first line.
    assert failure.line.startswith("m01 needs about 10Gi of memory")
    assert "has is 8Gi (worker-0, worker-1)" in failure.line
    # Two attempts of the first plan, because the first one may share its worker, and one of the second.
    assert max(failures(simulation).values()) == 3


def test_a_stack_is_no_other_parallel_plan() -> None:
    """It needs more memory than the model alone, so the model fails after the second attempt, which ran alone."""
    memory = {"worker-0": 8.0}
    scenario = Scenario(
        replicas=everywhere(1, 1), outcome=needing({"m00": 9.0}, memory), memory=of_memory(memory)
    )
    simulation = Simulation(scenario, request(2, 1), plan(2, 1, parallel_plans=(fused(16), SINGLE)))
    simulation.run()
    models = fold(EXPERIMENT, simulation.log).runs["fit-1"].models
    assert [model.state for model in models.values()] == [ModelState.FAILED, ModelState.FINISHED]
    assert [*failures(simulation).values()] == [2]
    assert models["m00"].failures.final is not None
    assert models["m00"].failures.final.line.startswith("m00 needs about 10Gi of memory")


def test_an_unknown_memory_limit_leaves_all_attempts() -> None:
    """Workers on one machine share memory, so a failure proves nothing."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        found = needing({"m00": 9.0}, {worker: 8.0})(body, attempt, worker)
        return found.model_copy(update={"limit_bytes": 0}) if found else None

    scenario = Scenario(replicas=everywhere(2, 1), outcome=outcome)
    simulation = Simulation(scenario, request(2, 1), plan(2, 1))
    simulation.run()
    assert [*failures(simulation).values()] == [3]


@settings(max_examples=60, deadline=None)
@given(
    memory=st.lists(st.sampled_from([2.0, 4.0, 8.0, 16.0]), min_size=1, max_size=4),
    needs=st.lists(st.sampled_from([0.5, 3.0, 7.0, 7.5, 12.0, 40.0]), min_size=1, max_size=4),
    partitions=st.integers(1, 3),
    away=st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.1, 20.0), st.sampled_from([0.5, 15.0, 60.0])), max_size=3
    ),
    crash_before=st.frozensets(st.integers(0, 60), max_size=3),
)
def test_each_memory_limit_is_tried_alone_once_and_no_model_waits_forever(
    memory: list[float],
    needs: list[float],
    partitions: int,
    away: list[tuple[int, float, float]],
    crash_before: frozenset[int],
) -> None:
    """A model finishes if some worker has clearly enough memory, and fails otherwise, with one more attempt
    per larger limit. Workers may leave and controllers crash."""
    has = {f"worker-{number}": each for number, each in enumerate(memory)}
    wants = {f"m{number:02}": each for number, each in enumerate(needs)}
    outages = [
        WorkerOutage(worker=f"worker-{number % len(memory)}", start=start, length=length)
        for number, start, length in away
    ]
    scenario = Scenario(
        replicas=everywhere(len(memory), partitions),
        outcome=needing(wants, has),
        memory=of_memory(has),
        outages=outages,
        crash_before=crash_before,
    )
    simulation = Simulation(scenario, request(len(needs), 1), plan(len(needs), partitions))
    simulation.run()
    state = fold(EXPERIMENT, simulation.log)
    for name, model in state.runs["fit-1"].models.items():
        most = max(memory)
        assert (model.state is ModelState.FINISHED) == (wants[name] <= most)
        larger = len({each for each in memory if each < wants[name]})
        assert all(count <= 1 + larger for task, count in failures(simulation).items() if f"/{name}/" in task)
    assert_complete(state, epochs=1, partitions=partitions)
    assert_exclusive(simulation)
    given = Counter(event.task for event in simulation.log if isinstance(event, TaskAssigned))
    assert max(given.values()) <= 3 + len({*memory}) + 2 * len(away)


@pytest.mark.parametrize(("pod", "usage", "expected"), [(True, None, 4), (True, 6, 6), (False, 6, None)])
def test_a_workers_memory_is_the_current_limit_of_its_container(
    pod: bool, usage: int | None, expected: int | None
) -> None:
    """The limit may change after registration. On a shared machine there is no own memory."""
    record = WorkerRecord(
        worker="w-0",
        incarnation="a",
        weight=1.0,
        cores=1,
        kinds=("train",),
        memory_bytes=4,
        pod=PodRef(name="w-0", uid="1", container="worker") if pod else None,
    )
    worker_usage = WorkerUsage(cores=1, memory_limit_bytes=usage)
    view = worker_view(
        WorkerStatus(record=record, silent_s=0.0, usage=worker_usage), None, silent_s=0.0, lease_s=10.0
    )
    assert view.memory_bytes == expected


def reasons(
    limits: Mapping[str, int], aside: Mapping[str, int | None], *, holds: bool = True, making: bool = False
) -> list[str]:
    """Return the reasons to fail a sub-epoch that needs more than 8 GiB.

    `limits` are present workers and `aside` quarantined ones, in GiB. With `making`, worker-2 is making the
    partition.
    """
    story = Story(workers=3)
    story.etl()
    story.fit(models=1)
    key = sub_epoch(1, 0)
    for worker in story.state.workers.values():
        worker.replicas = {(DATASET, 0)} if worker.name == "worker-0" else set()
    for attempt in (1, 2):
        story.start(key, 0)
        failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="", memory_kind="host", limit_bytes=8 * GIB)
        story.append(TaskFailed(task=str(key), attempt=attempt, worker="worker-0", failure=failure))
    if making:
        story.state.workers["worker-2"].kinds |= {"etl"}
        story.start(TaskKey(run="fit-1", kind="etl", split="train", partition=0), 2)
    held = (Replica(dataset=DATASET, partition=0),) if holds else ()
    named: Any = {"incarnation": "a", "weight": 1.0, "kinds": ("train",)}
    snapshot = ClusterSnapshot(
        workers={
            name: WorkerView(memory_bytes=each * GIB, replicas=(), **named) for name, each in limits.items()
        },
        excluded_views={
            name: WorkerView(memory_bytes=each and each * GIB, replicas=held, **named)
            for name, each in aside.items()
        },
        now=story.time,
    )
    return [event.reason for event in hopeless(story.state, story.run, snapshot)]


@pytest.mark.parametrize(
    ("memory", "holds", "is_given_up"),
    [(64, True, False), (None, True, False), (8, True, True), (64, False, True)],
)
def test_no_task_fails_if_a_quarantined_worker_has_enough_memory(
    memory: int | None, holds: bool, is_given_up: bool
) -> None:
    """It may be released. A small worker, or one without the partition, would not help."""
    assert bool(reasons({"worker-0": 8}, {"worker-1": memory}, holds=holds)) == is_given_up


@pytest.mark.parametrize("making", [True, False])
@pytest.mark.parametrize("memory", [64, 8])
def test_no_task_fails_if_a_future_replica_holder_has_enough_memory(making: bool, memory: int) -> None:
    """The new holder may have more memory."""
    assert bool(reasons({"worker-0": 8, "worker-2": memory}, {}, making=making)) == (
        not making or memory == 8
    )
