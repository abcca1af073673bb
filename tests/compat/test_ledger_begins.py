"""A run in flight, as the last version without the cluster's log left it, goes on under this one.

`log-before-ledger.jsonl` is what that version's controller and simulated workers wrote (see README.md here): five
models on three workers, one of them with two devices. Three units run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cerebro.contract import api
from cerebro.contract.events import (
    ClusterEvent,
    Event,
    HoldingsChanged,
    TaskRevoked,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import ExperimentRecord, Holding, Locator, Locators
from cerebro.contract.tasks import FailureKind
from cerebro.state import ClusterState, ExperimentState, TaskState
from cerebro.state.experiment import fold
from controller.cluster_decision import busy, decide, ending
from controller.cluster_snapshot import Absence, ClusterSnapshot, Liveness, WorkerView
from controller.core import Core
from controller.orchestrator import Exit
from controller.simulation.scenario import DATASET, EXPERIMENT

LOG = [
    TypeAdapter[Event](Event).validate_json(line)
    for line in (Path(__file__).parent / "log-before-ledger.jsonl").read_text().splitlines()
]


class Upgraded:
    """That experiment, and the cluster as this version finds it."""

    def __init__(self) -> None:
        record = ExperimentRecord(name=EXPERIMENT, locators=Locators(train=Locator(metadata="t.csv")))
        self.core, self.ledger = Core(record), ClusterState()
        for event in LOG:
            self.core.apply(event, is_news=False)
        self.workers = {
            worker.name: WorkerView(
                incarnation=worker.incarnation,
                weight=1.0,
                kinds=tuple(sorted(worker.kinds)),
                holdings=tuple(Holding(dataset=d, partition=p) for d, p in sorted(worker.holdings)),
                devices=worker.devices,
            )
            for worker in self.state.workers.values()
        }

    @property
    def state(self) -> ExperimentState:
        return self.core.state

    @property
    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(now=LOG[-1].time + 1, workers=self.workers, named=self.ledger.workers.keys())

    def tell(self) -> list[ClusterEvent]:
        """Have the controller say what is new of the workers, until it has nothing to say."""
        told: list[ClusterEvent] = []
        while events := decide(self.ledger, self.snapshot, ending=ending(self.state), busy=busy(self.state)):
            for event in events:
                self.ledger.apply(event.model_copy(update={"seq": self.ledger.seq + 1}))
                self.core.apply(
                    event.model_copy(update={"seq": self.state.seq + 1, "time": LOG[-1].time + 1})
                )
            told += events
        return told

    def running(self) -> dict[str, str]:
        return {
            str(task.key): task.worker or ""
            for task in self.state.runs["fit-1"].open.values()
            if task.state is TaskState.RUNNING
        }


def test_the_log_is_of_a_run_in_flight() -> None:
    """Units run, at workers that the log itself names."""
    state = fold(EXPERIMENT, LOG)
    assert {event.type for event in LOG} >= {"WorkerJoined", "TaskRevoked", "TaskCommitted"}
    assert [task.state.value for task in state.runs["fit-1"].open.values()] == ["running"] * 3
    assert all(worker.is_alive for worker in state.workers.values())


def test_the_same_workers_go_on_with_what_they_have() -> None:
    """The ledger names them for the first time; nothing is taken back, and what they hold they hold."""
    upgraded = Upgraded()
    before = upgraded.running()
    assert before
    assert [event.type for event in upgraded.tell()] == ["WorkerJoined"] * 3
    assert upgraded.running() == before
    assert {w.name: w.holdings for w in upgraded.state.workers.values()} == {
        f"worker-{number}": {(DATASET, number)} for number in range(3)
    }
    steps = upgraded.core.decide(upgraded.snapshot)
    assert not [step for step in steps if isinstance(step, api.Revoke | api.Note)]


def test_what_workers_had_that_were_replaced_is_done_again() -> None:
    """They end with the cluster and begin anew with this version: each task is taken back by force, and given again."""
    upgraded = Upgraded()
    had = {key for worker in upgraded.state.workers.values() for key in worker.open_tasks}
    for name, seen in upgraded.workers.items():
        upgraded.workers[name] = WorkerView(
            incarnation="anew", weight=1.0, kinds=seen.kinds, holdings=seen.holdings, devices=seen.devices
        )
    upgraded.tell()
    steps = upgraded.core.decide(upgraded.snapshot)
    revoked = [step for step in steps if isinstance(step, api.Revoke)]
    assert {step.task for step in revoked} == had
    assert all(step.force for step in revoked)
    assert len(steps) == len(revoked)
    for step in revoked:
        named = step.model_dump(include={"task", "attempt", "worker", "reason", "loss"})
        upgraded.core.apply(TaskRevoked(**named))
    assert not any(worker.left for worker in upgraded.state.workers.values())
    again = [step for step in upgraded.core.decide(upgraded.snapshot) if isinstance(step, api.Assign)]
    assert {step.incarnation for step in again} == {"anew"}
    assert {step.worker for step in again} == {"worker-0", "worker-1", "worker-2"}


@pytest.mark.parametrize("is_registered", [False, True])
def test_a_worker_that_is_no_more_is_lost_in_the_log_that_knows_it(is_registered: bool) -> None:
    """The ledger never names it: it is away from the beginning, or removed."""
    upgraded = Upgraded()
    gone = upgraded.workers.pop("worker-1")
    if is_registered:
        absence = Absence(how=Liveness.GONE, exit=Exit(reason="its pod ended", kind=FailureKind.PREEMPTED))
        upgraded.workers["worker-1"] = WorkerView(
            incarnation=gone.incarnation, weight=1.0, kinds=gone.kinds, holdings=(), absence=absence
        )
    assert {event.worker for event in upgraded.tell() if not isinstance(event, HoldingsChanged)} == {
        "worker-0",
        "worker-2",
    }
    notes = [step.event for step in upgraded.core.decide(upgraded.snapshot) if isinstance(step, api.Note)]
    assert [type(event) for event in notes] == [WorkerLost] + [WorkerRemoved] * (not is_registered)
    for event in notes:
        upgraded.core.apply(event)
    assert not upgraded.state.workers["worker-1"].is_alive
    if is_registered:
        upgraded.workers["worker-1"] = gone
        assert [event.type for event in upgraded.tell()] == ["WorkerJoined"]
        assert upgraded.state.workers["worker-1"].is_alive
