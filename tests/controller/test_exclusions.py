"""The contract of exclusions: each has a reason, a scope and an end, and stops its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from cerebro.contract.events import ForecastMade, TaskFailed, TaskRevoked
from cerebro.contract.records import ExperimentRecord, Locator, Locators, WorkerRecord, WorkerStatus
from cerebro.contract.rest import api
from cerebro.contract.runs import ForecastEnd
from cerebro.contract.stored.health import CONTROLLER, HealthAnswer, Quarantine, WorkerCheck, WorkerHealth
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import TaskKey
from cerebro.state.exclusions import Exclusion, Scope
from cerebro.state.worker_quarantine import CHECK_TIMEOUT_S, DOUBTED_MACHINE, health_words, machine_exclusions
from controller.decisions.core import Core
from controller.exclusions.collection import Exclusions, of_slot
from controller.exclusions.memory_needs import without_memory
from controller.exclusions.memory_retries import reserved, runs_alone
from controller.exclusions.model_exclusions import feasible_workers
from controller.scaling.autoscaler.autoscaler import released
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from controller.sharing.arbiter import DeviceSlot
from tests.state.stories import Story, joined, sub_epoch, validation

NOW = 1000.0
TRAIN = sub_epoch(1, 0, "m00")
VALID = validation(1)
ETL = TaskKey(run="fit-1", kind="etl", split="train", partition=0)


def status(name: str, *kinds: str, volume: str = "") -> WorkerStatus:
    record = WorkerRecord(
        worker=name, incarnation="a", weight=1.0, cores=1, kinds=kinds, volume=volume or None
    )
    return WorkerStatus(record=record, silent_s=0.0)


def quarantined(is_on: bool, worker: str = "worker-0") -> HealthAnswer:
    mark = Quarantine(is_on=is_on, reason="its fan is loud", by="ada", time=1.0)
    return HealthAnswer(workers={worker: WorkerHealth(quarantine=mark)})


def trainer_quarantined(is_on: bool) -> HealthAnswer:
    return quarantined(is_on, "worker-1")


def under_check(is_on: bool) -> HealthAnswer:
    requested_at = NOW if is_on else NOW - CHECK_TIMEOUT_S
    check = WorkerCheck(requested=requested_at, reason=f"{DOUBTED_MACHINE}{TRAIN}", by=CONTROLLER)
    return HealthAnswer(workers={"worker-0": WorkerHealth(check=check)})


def by_machine(health: Callable[[bool], HealthAnswer]) -> Callable[[bool], Iterable[Exclusion]]:
    def produce(is_on: bool) -> Iterable[Exclusion]:
        found = machine_exclusions(STATUSES, health(is_on), NOW)
        return [each for each in found if each.worker == "worker-0"]

    return produce


STATUSES = [status("worker-0", "etl", volume="v"), status("worker-1", "train", volume="v")]
MACHINES = {"quarantined": quarantined, "unreadable volume": trainer_quarantined, "under check": under_check}


def without_room(is_on: bool) -> Iterable[Exclusion]:
    view = WorkerView(incarnation="a", weight=1.0, kinds=("etl",), replicas=(), has_room=not is_on)
    return ClusterSnapshot(workers={"worker-0": view}).without_room()


def by_autoscaler(is_on: bool) -> Iterable[Exclusion]:
    """The autoscaler requests one of two workers, or both."""
    ends = (ForecastEnd(2, 1.0, 1.0),)
    forecast = ForecastMade(run="fit-1", workers=2, ends=ends, requested_workers=1 if is_on else 2)
    return released(Story(workers=2).state, forecast, ("worker-1", "worker-0"))


def fit_with_replicas() -> Story:
    """Two workers with both partitions, and models m00 and m01."""
    story = Story(workers=0)
    story.append(joined(0, partitions=(0, 1)), joined(1, partitions=(0, 1)))
    story.fit(models=2)
    return story


def core_of(story: Story) -> Core:
    core = Core(ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv"))))
    core.state = story.state
    return core


def excluded(story: Story) -> set[str]:
    """Return the workers that hold remaining partitions of m00 and may not train it."""
    fit = core_of(story).fit
    assert fit is not None
    model = fit.names.model("m00")
    holders = {
        w for w, held in enumerate(fit.dispatch_state.holders.held) if held & fit.dispatch_state.open[model]
    }
    return {fit.names.workers[worker] for worker in holders - feasible_workers(fit, model, NOW)}


@pytest.mark.parametrize("is_on", [True, False])
def test_a_model_does_not_return_to_where_it_failed(is_on: bool) -> None:
    """Another worker holds the partition."""
    story = fit_with_replicas()
    if is_on:
        story.fail(TRAIN, 0, FailureKind.DEVICE)
    assert excluded(story) == ({"worker-0"} if is_on else set())


@pytest.mark.parametrize("is_on", [True, False])
def test_a_model_first_continues_its_interrupted_sub_epoch(is_on: bool) -> None:
    """m00 must continue on worker-1, the only holder of the partition."""
    story = Story()
    story.fit(models=2)
    key = sub_epoch(1, 1)
    attempt, lost_by = story.start(key, 1), FailureKind.PREEMPTED
    story.append(TaskRevoked(task=str(key), attempt=attempt, worker="worker-1", reason="-", loss=lost_by))
    if not is_on:
        story.train(1, 1)
    assert excluded(story) == ({"worker-0"} if is_on else set())


def without_memory_for(key: TaskKey) -> Callable[[bool], Iterable[Exclusion]]:
    """Two attempts ran out of memory alone on workers with 8 GiB; then worker-0 gets more."""

    def produce(is_on: bool) -> Iterable[Exclusion]:
        story = Story(workers=1)
        story.fit(models=1, partitions=1, validated=True)
        if key.kind == "valid":
            story.train(1, 0)
        failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="", memory_kind="host", limit_bytes=8 << 30)
        for _ in range(2):
            attempt = story.start(key, 0)
            story.append(TaskFailed(task=str(key), attempt=attempt, worker="worker-0", failure=failure))
        memory = (8 if is_on else 64) << 30
        view = WorkerView(incarnation="a", weight=1.0, kinds=("train",), replicas=(), memory_bytes=memory)
        return without_memory(story.run, {"worker-0": view})

    return produce


class Case(NamedTuple):
    """A function that returns the exclusions of worker-0 during their cause (True) and after it (False)."""

    produce: Callable[[bool], Iterable[Exclusion]]
    scope: Scope
    stopped: TaskKey | None
    allowed: TaskKey | None = None


CASES = {
    "quarantined": Case(by_machine(quarantined), Scope.EVERYTHING, TRAIN),
    "unreadable volume": Case(by_machine(trainer_quarantined), Scope.EVERYTHING, ETL),
    "under check": Case(by_machine(under_check), Scope.NEW_TASKS, TRAIN),
    "runs alone": Case(lambda is_on: [runs_alone("worker-0", TRAIN)] * is_on, Scope.NEW_TASKS, ETL),
    "no memory for a model": Case(without_memory_for(TRAIN), Scope.MODEL, TRAIN, VALID),
    "no memory for a task": Case(without_memory_for(VALID), Scope.TASK, VALID, TRAIN),
    "full volume": Case(without_room, Scope.COPIES, None, TRAIN),
    "released by the autoscaler": Case(by_autoscaler, Scope.REPLICAS, None, TRAIN),
    "reserved": Case(lambda is_on: [reserved("worker-0", TRAIN)] * is_on, Scope.NEW_TASKS, ETL),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_exclusion_has_a_reason_a_scope_and_an_end(case: Case) -> None:
    (found,) = case.produce(True)
    assert found.worker == "worker-0"
    assert found.reason
    assert found.scope is case.scope
    assert found.until is None or found.until > NOW
    assert not [*case.produce(False)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_exclusion_stops_the_tasks_of_its_scope(case: Case) -> None:
    (found,) = case.produce(True)
    exclusions = Exclusions([found])
    assert exclusions.workers(case.scope) == {"worker-0"}
    if case.stopped is not None:
        assert exclusions.feasible(case.stopped, "worker-0") == found
        assert exclusions.feasible(case.stopped, "worker-1") is None
    assert exclusions.stops_all("worker-0") == (case.allowed is None)
    if case.allowed is not None:
        assert exclusions.feasible(case.allowed, "worker-0") is None


def test_a_device_slot_of_another_run_is_excluded_alone() -> None:
    exclusions = Exclusions(slots={DeviceSlot("worker-0", 1)})
    assert exclusions.feasible(TRAIN, "worker-0", (1,)) == of_slot(DeviceSlot("worker-0", 1))
    assert exclusions.feasible(TRAIN, "worker-0", (0,)) is None
    assert exclusions.feasible(ETL, "worker-0", ()) is None


@pytest.mark.parametrize("name", ["quarantined", "under check"])
def test_an_excluded_worker_gets_no_task(name: str) -> None:
    story = fit_with_replicas()
    core = core_of(story)
    views = {
        name: WorkerView(incarnation="a", weight=1.0, kinds=("train", "etl"), replicas=())
        for name in ("worker-0", "worker-1")
    }

    def assigned(*exclusions: Exclusion) -> set[str]:
        steps = core.decide(ClusterSnapshot(workers=views, now=story.time, exclusions=exclusions))
        return {step.worker for step in steps if isinstance(step, api.Assign)}

    assert assigned() == {"worker-0", "worker-1"}
    assert assigned(*CASES[name].produce(True)) == {"worker-1"}


@pytest.mark.parametrize("name", MACHINES)
def test_status_prints_the_reason_of_the_exclusion(name: str) -> None:
    """The page and `cerebro status` print `health_words`; the log prints the exclusion's reason."""
    (found,) = CASES[name].produce(True)
    assert health_words(STATUSES, MACHINES[name](True), NOW)["worker-0"] == found.reason
