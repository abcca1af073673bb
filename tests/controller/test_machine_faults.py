"""Unrelated problems do not mislead the detection of broken machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.stored.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    IncidentRequest,
    PaceRequest,
    Probe,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerCheck,
    WorkerHealth,
)
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import ConflictError
from cerebro.state import ModelState, TaskKey, TaskState, worker_quarantine
from cerebro.state.runs.parts.run_tasks import RunTasks
from cerebro.state.tasks.task import Task
from cerebro.state.workers import Ended
from controller.exclusions.health import Checked, Quarantined, act, evidence, given_up_at
from controller.exclusions.machines import Machines
from tests.controller.test_machines import ECC, ended, status

BAD = CheckResult(incarnation="a", probes=(Probe(name="memory", problem="1 word"),))


def with_check(result: CheckResult = BAD, *, at_s: float = 2.0) -> WorkerHealth:
    return WorkerHealth(check=WorkerCheck(requested=1.0, reason="r", by="ada", ended=at_s, result=result))


class Store:
    """Enforce the quarantine limits like the real store."""

    def __init__(self, workers: int, broken: int) -> None:
        self.statuses = [status(f"worker-{number}") for number in range(workers)]
        self.health = HealthAnswer(workers={f"worker-{number}": with_check() for number in range(broken)})
        self.incidents: list[IncidentRequest] = []
        self.leads = True

    def quarantine_worker(self, worker: str, request: QuarantineWorkerRequest) -> WorkerHealth:
        if not self.leads:
            raise ConflictError("leadership term 1 has ended, term 2 leads")
        changed = worker_quarantine.quarantined(worker, request, self.statuses, self.health, 3.0).health
        self.health = self.health.model_copy(update={"workers": {**self.health.workers, worker: changed}})
        return changed

    def release_worker(self, worker: str, request: ReleaseRequest) -> WorkerHealth:
        raise AssertionError

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        raise AssertionError

    def report_pace(self, worker: str, request: PaceRequest) -> None:
        raise AssertionError

    def report_incident(self, request: IncidentRequest) -> None:
        if not self.leads:
            raise ConflictError("leadership term 1 has ended, term 2 leads")
        self.incidents.append(request)

    def decide(self, experiment: str, request: Any) -> Any:
        raise AssertionError


def reconcile(store: Store, health: HealthAnswer) -> bool:
    return Machines(store).reconcile(1, store.statuses, health, evidence={}, open_runs=[], now=3.0)


def test_a_second_refused_quarantine_is_not_a_lost_leadership() -> None:
    """A second quarantine would exceed half of three workers, so the store refuses it."""
    store = Store(3, 2)
    assert reconcile(store, store.health)
    assert store.health.quarantined() == {"worker-0"}
    assert [(each.worker, each.what) for each in store.incidents] == [("worker-1", "not quarantined")]


def test_a_stale_term_is_an_error() -> None:
    """Another controller leads, so this one stops."""
    store = Store(3, 1)
    store.leads = False
    with pytest.raises(ConflictError, match="term 2 leads"):
        reconcile(store, store.health)


def test_equal_task_keys_of_two_experiments_are_different_tasks() -> None:
    """Both experiments have a `fit-1`, so equal task names on two workers prove nothing."""
    failed = [ended("fit-1/train/m0/e0/p0", ECC), ended("fit-1/train/m1/e0/p0", ECC)]
    fine = {f"worker-{number}": [ended("fit-1/train/z")] for number in range(2, 8)}
    workers = [status(f"worker-{number}") for number in range(8)]
    one, two = ([each._replace(experiment=name) for each in failed] for name in ("one", "two"))
    proofs = evidence([{"worker-0": one}, fine, {"worker-1": two}])
    found = act(workers, HealthAnswer(), proofs, 200.0)
    assert [(type(each), each.worker) for each in found] == [
        (Quarantined, "worker-0"),
        (Quarantined, "worker-1"),
    ]


def test_one_event_that_ends_a_fused_group_does_not_quarantine_its_worker() -> None:
    """The worker checks its machine. The second event quarantines it; one model that fails everywhere does not."""
    workers = [status(f"worker-{number}") for number in range(4)]
    tasks = [f"fit-1/train/m0{number}/e1/p0" for number in range(3)]
    first = ended(tasks[0], ECC)._replace(other_tasks=(tasks[1], tasks[2]))
    second = ended("fit-1/train/m03/e1/p0", ECC)

    def actions(**found: list[Ended]) -> list[type]:
        proofs = evidence([{name.replace("_", "-"): ends for name, ends in found.items()}])
        return [type(each) for each in act(workers, HealthAnswer(), proofs, 200.0)]

    assert actions(worker_0=[first]) == [Checked]
    assert actions(worker_0=[first, second]) == [Quarantined]
    elsewhere = ended(tasks[2], ECC)
    assert actions(worker_0=[first, second], worker_1=[elsewhere]) == [Checked, Checked]


def attempts(*ends: tuple[str, str]) -> Task:
    """A task with failed attempts as (worker, failure): `ecc`, `oom` or `silent`."""
    task = Task(key=TaskKey(run="fit-1", kind="train", model="m0", epoch=0, partition=0))
    for worker, how in ends:
        if task.state is TaskState.FAILED:
            task.retry()
        number: Any = len(task.attempts) + 1
        at: Any = SimpleNamespace(
            attempt=number, time=float(number), devices=(0,), parallel_plan=None, other_members=(), group=None
        )
        task.assign(at, worker)
        task.start(at)
        if how == "ecc":
            task.fail(SimpleNamespace(time=number, failure=ECC), 3)  # type: ignore[arg-type]
        else:
            loss = FailureKind.OUT_OF_MEMORY if how == "oom" else FailureKind.CRASH
            revocation: Any = SimpleNamespace(time=number, reason=how, loss=loss, limit_bytes=0)
            task.revoke(revocation, 3)
    return task


def run_of(task: Task) -> Any:
    return SimpleNamespace(
        models={"m0": SimpleNamespace(id="m0", state=ModelState.FAILED)}, tasks=RunTasks(by_key={"t": task})
    )


@pytest.mark.parametrize("how", ["oom", "silent"])
def test_a_task_that_failed_finally_on_a_healthy_worker_is_not_retried(how: str) -> None:
    """After one failure on a quarantined worker, losses on another worker caused the final failure."""
    task = attempts(("worker-0", "ecc"), *[("worker-1", how)] * (3 if how == "oom" else 6))
    assert task.state is TaskState.FAILED
    assert given_up_at({"worker-0"}, run_of(task), {}) == []


def test_the_controller_retries_a_task_once() -> None:
    """It failed on the quarantined worker; after a retry, both sets of attempts count."""
    task = attempts(*[("worker-0", "ecc")] * 5)
    assert task.state is TaskState.FAILED
    assert given_up_at({"worker-0"}, run_of(task), {}) == ["m0"]
    assert given_up_at({"worker-0"}, run_of(task), {"m0": 7.0}) == []
    assert given_up_at({"worker-1"}, run_of(task), {}) == []
