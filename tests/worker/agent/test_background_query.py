"""Volumes are queried in the background, so a hung volume does not delay reports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cerebro.contract.records import Replica
from cerebro.contract.rest import api
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import StoreUnavailableError
from cerebro.worker.agent import reports
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.lease import Lease
from cerebro.worker.agent.reports import Reports, Resources
from cerebro.worker.agent.settings import Settings
from tests.waiting import HANG_S, join, until

HELD = (Replica(dataset="d", partition=0),)
COMMIT = api.Commit(experiment="one", task="etl-1/etl/train/p0", attempt=1, result=TaskResult())


class Store:
    """A store that records reports and fails for the next `away` calls."""

    def __init__(self) -> None:
        self.reports: list[api.ReportRequest] = []
        self.away = 0

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        self.reports.append(request)
        if self.away:
            self.away -= 1
            raise StoreUnavailableError("away")
        return api.ReportAnswer(
            current=True, outcomes=tuple(api.StepOutcome(outcome="done") for _ in request.steps)
        )


def new_reports(store: Any, look: Any) -> Reports:
    settings = Settings.from_environment(
        {"CEREBRO_TOKEN": "t", "CEREBRO_WORKER": "w", "CEREBRO_VOLUMES": "/nowhere"}
    )
    resources = Resources(devices=WorkerDevices(1), replicas=look, host="h", pid=1)
    return Reports(store, settings, resources, lambda: [Lease()], Drain())


def test_a_new_partition_is_reported_once_with_its_commit() -> None:
    """After an outage the next report has it."""
    store = Store()
    reports = new_reports(store, lambda: HELD)
    reports.send([])
    store.away = 1
    with pytest.raises(StoreUnavailableError):
        reports.send([COMMIT])
    reports.send([])
    reports.send([])
    reports.send([COMMIT])
    assert [request.replicas for request in store.reports] == [None, HELD, HELD, None, HELD]


def test_a_commit_waits_only_a_moment_for_a_volume_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next report after the volume's answer has the partition."""
    monkeypatch.setattr(reports, "_VOLUME_WAIT_S", 0.05)
    let_go, store = threading.Event(), Store()
    sender = new_reports(store, lambda: let_go.wait(HANG_S) and HELD)
    sender.send([COMMIT])
    let_go.set()
    assert sender._replicas.wait(1, HANG_S)
    sender.send([])
    sender.send([])
    assert [request.replicas for request in store.reports] == [None, HELD, None]


class Blocking(Store):
    """A store whose first answer waits, and which refuses the task "lost"."""

    def __init__(self) -> None:
        super().__init__()
        self.is_queried, self.may_answer = threading.Event(), threading.Event()

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        self.reports.append(request)
        if not self.is_queried.is_set():
            self.is_queried.set()
            assert self.may_answer.wait(HANG_S)
        if any(step.task == "away" for step in request.steps):
            raise StoreUnavailableError("away")
        outcomes = (
            api.StepOutcome(outcome="refused" if step.task == "lost" else "done") for step in request.steps
        )
        return api.ReportAnswer(current=True, outcomes=tuple(outcomes))


def renewal(task: str) -> api.Renew:
    return api.Renew(experiment="one", task=task, attempt=1)


@pytest.mark.parametrize("third", ["c", "away"])
def test_concurrent_steps_of_devices_share_one_report(third: str) -> None:
    """Each caller gets the outcomes of its own steps; an outage is raised to all."""
    store = Blocking()
    reports = new_reports(store, lambda: HELD)
    answers: dict[str, list[str]] = {}

    def send(*tasks: str) -> threading.Thread:
        def sending() -> None:
            try:
                found = reports.send([renewal(task) for task in tasks])
                answers[tasks[0]] = [outcome.outcome for outcome in found]
            except StoreUnavailableError as error:
                answers[tasks[0]] = [str(error)]

        thread = threading.Thread(target=sending)
        thread.start()
        return thread

    first = send("a")
    assert store.is_queried.wait(HANG_S)
    others = [send("b", "lost"), send(third)]
    until(lambda: len(reports._waiting) == 2, "both wait")
    store.may_answer.set()
    for thread in (first, *others):
        join(thread)
    assert len(store.reports) == 2
    assert {step.task for step in store.reports[1].steps} == {"b", "lost", third}
    assert (
        answers
        == {
            "c": {"a": ["done"], "b": ["done", "refused"], "c": ["done"]},
            "away": {"a": ["done"], "b": ["away"], "away": ["away"]},
        }[third]
    )
