"""Housekeeping failures and hangs do not disturb tasks, leases or reports."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.records import WorkerUsage
from cerebro.contract.rest import api
from cerebro.errors import StoreUnavailableError
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.reports import Resources
from cerebro.worker.agent.settings import Settings
from cerebro.worker.upkeep import housekeeping
from cerebro.worker.upkeep.housekeeping import Housekeeping
from cerebro.worker.upkeep.metrics import Metrics
from cerebro.worker.upkeep.task_logs import TaskLogs
from tests.waiting import HANG_S

USAGE = WorkerUsage(cores=2, memory_bytes=7)


class Passes(threading.Event):
    """An event that is unset for `times` checks and never pauses."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


class Beside:
    """Fake collaborators of `Housekeeping`; each can fail."""

    def __init__(self) -> None:
        self.reclaim, self.changes, self.acted, self.swept = 3, 0, list[int](), 0
        self.problems: dict[str, Sequence[Exception | None]] = {}
        self.datasets: list[set[str]] = [set()]
        self.expected = 0

    def _come(self, what: str) -> None:
        problem, *rest = self.problems.get(what, (None,))
        self.problems[what] = rest or (None,)
        if problem is not None:
            raise problem

    def measure(self) -> WorkerUsage:
        self._come("measure")
        return USAGE

    def sweep(self) -> None:
        self.swept += 1
        self._come("sweep")

    def act(self, seq: int) -> bool:
        self._come("act")
        self.acted.append(seq)
        return len(self.acted) == 1

    def held(self) -> set[str]:
        return self.datasets.pop(0) if len(self.datasets) > 1 else self.datasets[0]

    def expect_models(self) -> None:
        self.expected += 1

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PAUSE_S", 0.0)


def new_housekeeping(parts: Any) -> Housekeeping:
    return Housekeeping(parts, parts, Metrics({}), parts, TaskLogs(0), expect_models=parts.expect_models)


@pytest.mark.parametrize(
    ("datasets", "expected"),
    [
        ([set()], 0),
        ([{"a"}], 1),
        ([set(), set(), {"a"}, {"a"}, {"a", "b"}], 2),
        ([{"a"}, set(), {"a"}], 2),
    ],
    ids=["none", "there already", "appear one after the other", "reclaimed and made again"],
)
def test_models_are_expected_when_training_data_appears(datasets: list[set[str]], expected: int) -> None:
    """A new worker without data starts no process."""
    parts = Beside()
    parts.datasets = datasets
    new_housekeeping(parts).run(Passes(5), 1.0)
    assert parts.expected == expected


@pytest.mark.parametrize("what", ["measure", "sweep", "act"])
@pytest.mark.parametrize("problem", [StoreUnavailableError("away"), OSError("stale"), ValueError("odd")])
def test_failed_duties_are_retried(what: str, problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and other duties continue."""
    beside = Beside()
    beside.problems[what] = (problem,)
    housekeeping = new_housekeeping(beside)
    housekeeping.run(Passes(2), 1.0)
    assert housekeeping.newest_usage() == USAGE
    assert beside.acted
    assert f"{what.replace('act', 'reclaim')} left for later" in caplog.text


class Store:
    """A store that counts reports."""

    def __init__(self) -> None:
        self.reports = list[api.ReportRequest]()
        self.has_many = threading.Event()

    def register(self, record: Any) -> None:
        pass

    def inbox(self, *_: Any, wait_s: float) -> tuple[()]:
        return ()

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        self.reports.append(request)
        if len(self.reports) == 5:
            self.has_many.set()
        return api.ReportAnswer(current=True, outcomes=())


@pytest.mark.parametrize("what", ["meter", "trash", "checkpoints", "replicas"])
def test_a_worker_that_cannot_be_measured_keeps_its_leases(
    what: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver or volume hangs, while reports continue to renew leases."""
    hangs, let_go = threading.Event(), threading.Event()

    def hang(*_: object) -> Any:
        hangs.set()
        let_go.wait(HANG_S)

    settings = Settings.from_environment(
        {
            "CEREBRO_TOKEN": "t",
            "CEREBRO_WORKER": "w",
            "CEREBRO_VOLUMES": str(tmp_path),
            "CEREBRO_LEASE_S": "0.1",
        }
    )
    meter: Any = SimpleNamespace(measure=hang) if what == "meter" else None
    store: Any = Store()
    looks = itertools.count()
    resources = Resources(
        devices=WorkerDevices(1), replicas=lambda: hang() if next(looks) else (), meter=meter, host="h", pid=1
    )
    agent = Agent(store, settings, {}, resources)
    if what == "checkpoints":
        monkeypatch.setattr(shutil, "disk_usage", hang)
    if what == "replicas":
        store.register = lambda record: agent._reports.changed()
    if what == "trash":
        monkeypatch.setattr(agent._reclaimer, "sweep", hang)
    # `stop` ends the loop; the forced exit of the process is not part of this test.
    monkeypatch.setattr(agent, "_end_in_time", agent._drain.wait)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        assert hangs.wait(HANG_S)
        assert store.has_many.wait(HANG_S)
    finally:
        agent.stop("the test is over")
        let_go.set()
        thread.join(HANG_S)
    assert not thread.is_alive()
