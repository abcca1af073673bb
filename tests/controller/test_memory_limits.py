"""Sub-epochs that need more memory than any worker has, with workers that can grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cerebro.contract.events import TaskGivenUp
from cerebro.contract.records import PodRef, WorkerRecord, WorkerStatus
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ClusterError, RetryableError
from cerebro.state import ModelState
from cerebro.state.experiment import fold
from controller.exclusions.memory_limits import WAIT_S, MemoryLimits
from controller.exclusions.memory_needs import hopeless
from controller.scaling.cluster_snapshot import ClusterSnapshot, Growth, WorkerView
from controller.scaling.orchestrator import Exit, Fleet, Memory, Pod
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.test_core import assert_complete, plan, request
from tests.controller.test_memory_needs import everywhere, failures, of_memory
from tests.state.test_memory import story_of

GIB = 1 << 30


def grown(need: float, most: float, **scenario: Any) -> Simulation:
    """Two workers of 4 GiB; m00 needs more, and `most` limits the growth."""
    found: list[Simulation] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        has = found[0]._workers.memory(worker)
        if getattr(body, "model", "") != "m00" or has >= need * GIB:
            return None
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed", memory_kind="host", limit_bytes=has)

    simulation = Simulation(
        Scenario(
            replicas=everywhere(2, 2),
            outcome=outcome,
            memory=of_memory({"worker-0": 4.0, "worker-1": 4.0}),
            max_memory=int(most * GIB),
            **scenario,
        ),
        request(3, 2),
        plan(3, 2),
    )
    found.append(simulation)
    simulation.run()
    return simulation


@pytest.mark.parametrize(("need", "doublings"), [(6.0, 1), (14.0, 2)])
def test_a_worker_gets_more_memory_before_a_model_fails(need: float, doublings: int) -> None:
    """The size of one worker doubles until it is enough; the other worker is unchanged."""
    simulation = grown(need, 16.0)
    memory = sorted(simulation._workers.memory(f"worker-{number}") for number in range(2))
    assert memory == [4 * GIB, 4 * GIB << doublings]
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].models["m00"].state is ModelState.FINISHED
    assert_complete(state, epochs=2, partitions=2)
    # One attempt that may share its worker, and one at each insufficient size.
    assert max(failures(simulation).values()) <= 1 + doublings


def test_a_need_above_the_maximum_fails_with_the_value_to_raise() -> None:
    """No resize is requested, and the message names the value to raise."""
    simulation = grown(40.0, 10.0)
    failure = fold(EXPERIMENT, simulation.log).runs["fit-1"].models["m00"].failures.final
    assert failure is not None
    assert "Raise autoscaler.maxMemory (10Gi) or worker.resources.worker.limits.memory" in failure.message
    assert max(simulation._workers.memory(f"worker-{number}") for number in range(2)) == 8 * GIB


def test_nodes_without_memory_end_in_a_failure_with_advice() -> None:
    """The controller waits for each worker once, then fails the model."""
    simulation = grown(6.0, 16.0, unresized=frozenset({"worker-0", "worker-1"}))
    (given_up,) = (event for event in simulation.log if isinstance(event, TaskGivenUp))
    assert "more could not be had for a worker" in given_up.reason
    assert "the new limit did not take effect within 120 s" in given_up.reason
    assert given_up.time <= 2 * WAIT_S + 30
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)


class Manager:
    """Record requests, or raise an error."""

    def __init__(self) -> None:
        self.resizes: list[tuple[str, str, Memory]] = []
        self.error: Exception | None = None

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Record the request like a cluster manager."""
        self.resizes.append((pod, container, memory))
        if self.error is not None:
            raise self.error


def looks(
    memory: int = 4, *, uid: str = "1", asks_for: int = 1, unresized: str = ""
) -> tuple[list[WorkerStatus], Fleet]:
    """A worker in a pod with `memory` GiB."""
    record = WorkerRecord(
        worker="w-0",
        incarnation="a",
        weight=1.0,
        cores=1,
        kinds=("train",),
        memory_bytes=memory * GIB,
        pod=PodRef(name="w-0", uid=uid, container="worker"),
    )
    pod = Pod(uid=uid, memory={"worker": Memory(asks_for * GIB, memory * GIB)}, unresized=unresized)
    return [WorkerStatus(record=record, silent_s=0.0)], Fleet(pods={"w-0": pod}, size=1)


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def at() -> list[float]:
    return [0.0]


@pytest.fixture
def limits(manager: Manager, at: list[float]) -> MemoryLimits:
    return MemoryLimits(manager, 10 * GIB, clock=lambda: at[0])


@pytest.mark.parametrize("error", [ClusterError("no such thing"), RetryableError("away")])
def test_a_refused_resize_is_logged_once_and_an_outage_is_retried(
    limits: MemoryLimits,
    manager: Manager,
    at: list[float],
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next attempt is delayed, so that the loop does other work."""
    manager.error = error
    is_final = isinstance(error, ClusterError)
    for second in range(12):
        at[0] = float(second)
        growth = limits.update(*looks())
        limits.grow({"w-0"})
        assert growth.workers == (frozenset() if is_final and second else {"w-0"})
    assert len(manager.resizes) == len(caplog.records) == (1 if is_final else 3)
    assert not is_final or "worker.resources.worker.limits.memory" in caplog.text
    assert limits.update(*looks()).problem == ("no such thing" if is_final else "")


@pytest.mark.parametrize("unresized", ["", "Node didn't have enough capacity"])
def test_a_resize_must_take_effect_within_its_time_limit(
    limits: MemoryLimits, at: list[float], unresized: str
) -> None:
    """The message quotes the node's reason, if there is one. A replaced pod may be resized."""
    limits.update(*looks())
    limits.grow({"w-0"})
    at[0] = WAIT_S
    assert limits.update(*looks(unresized=unresized)).workers == {"w-0"}
    at[0] = WAIT_S + 1
    growth = limits.update(*looks(unresized=unresized))
    assert growth.workers == frozenset()
    assert (unresized or "within 120 s") in growth.problem
    assert limits.update(*looks(uid="2")).workers == {"w-0"}


def _removed_pods(pod: Pod) -> dict[str, Pod]:
    return {}


def _anew(pod: Pod) -> dict[str, Pod]:
    return {"w-0": Pod(uid="other", memory=pod.memory)}


def _unbounded(pod: Pod) -> dict[str, Pod]:
    return {"w-0": Pod(uid=pod.uid)}


def _leaving(pod: Pod) -> dict[str, Pod]:
    return {"w-0": replace(pod, leaving=Exit(reason="its node is drained", kind=FailureKind.PREEMPTED))}


def _dead(pod: Pod) -> dict[str, Pod]:
    return {"w-0": replace(pod, dead=Exit(reason="evicted", kind=FailureKind.PREEMPTED))}


@pytest.mark.parametrize(
    ("pods", "may_grow"),
    [(_removed_pods, True), (_anew, True), (_leaving, True), (_dead, True), (_unbounded, False)],
)
def test_only_an_existing_pod_with_a_limit_is_resized(
    limits: MemoryLimits, manager: Manager, pods: Callable[[Pod], dict[str, Pod]], may_grow: bool
) -> None:
    """The registration may be about an older pod. A returning worker counts, because it may have more memory."""
    statuses, fleet = looks()
    growth = limits.update(statuses, Fleet(pods=pods(fleet.pods["w-0"]), size=1))
    limits.grow({"w-0"})
    assert (growth.workers, manager.resizes) == (frozenset({"w-0"} if may_grow else ()), [])


def hopeless_on(growth: Growth) -> list[str]:
    """Return the reasons to fail a sub-epoch that needs more than 8 GiB, with two workers."""
    story = story_of(8 * GIB, 8 * GIB)
    named: Any = {"weight": 1.0, "kinds": ("train",), "replicas": ()}
    views = {f"worker-{n}": WorkerView(incarnation="a", memory_bytes=8 * GIB, **named) for n in (0, 1)}
    snapshot = ClusterSnapshot(workers=views, now=story.time, growth=growth)
    return [event.reason for event in hopeless(story.state, story.run, snapshot)]


@pytest.mark.parametrize("most", [64, 10])
def test_no_task_fails_for_memory_before_the_cluster_manager_answers(manager: Manager, most: int) -> None:
    """A new controller does not know which workers can grow. A need above the maximum still fails."""
    unheard = MemoryLimits(manager, most * GIB).update((), None)
    assert bool(hopeless_on(unheard)) == (most == 10)
    heard = MemoryLimits(manager, most * GIB).update((), Fleet(pods={}, size=0))
    assert hopeless_on(heard)
