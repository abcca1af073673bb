"""The next sub-epoch starts speculatively while the worker waits for the store's permission."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.rest import api
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.volumes import checkpoint_file
from kvs_api.store.store import Store
from tests.worker.agent.agents import Agents, is_running, until

CHECKPOINT = CheckpointRef(name="one/fit-1/m00/u1.pt", checksum="0" * 16, size=1)
Before = Callable[[str], None]


@pytest.fixture
def before_grant(monkeypatch: pytest.MonkeyPatch) -> list[Before]:
    """Functions that the store calls with the task's key before it handles a start."""
    calls: list[Before] = []
    report = Store.report

    def watched(self: Store, worker: str, request: api.ReportRequest) -> dict[str, object]:
        for step in request.steps:
            if isinstance(step, api.Start):
                for call in calls:
                    call(step.task)
        return report(self, worker, request)

    monkeypatch.setattr(Store, "report", watched)
    return calls


def has_begun(agents: Agents, partition: int) -> bool:
    path = agents.gate(partition).with_suffix(".begun")
    return path.exists() and path.read_text() != ""


def test_the_next_sub_epoch_trains_before_the_store_has_answered(
    agents: Agents, before_grant: list[Before]
) -> None:
    """The store answers only after the process has started; the sub-epoch is committed once."""
    agents.start()
    first = agents.give(0, "wait")
    agents.begun(0)
    second = agents.give(1, "wait", checkpoint=CHECKPOINT)
    before_grant.append(lambda task: until(lambda: has_begun(agents, 1), f"{task} begins early"))
    agents.gate(0).touch()
    agents.gate(1).touch()
    assert isinstance(agents.end_of(second), TaskCommitted)
    of_second = [type(event) for event in agents.bench.log() if getattr(event, "task", "") == second]
    assert of_second[1:] == [TaskStarted, TaskCommitted]
    assert isinstance(agents.end_of(first), TaskCommitted)


@pytest.mark.parametrize(
    "parallel_plan", [None, ParallelPlan(technique="ddp", size=2)], ids=["alone", "ranks"]
)
def test_a_refused_speculative_start_leaves_nothing(
    agents: Agents, before_grant: list[Before], tmp_path: Path, parallel_plan: ParallelPlan | None
) -> None:
    """It is revoked during the request: its processes end, its log is removed, and the next attempt runs."""
    agents.start(devices=2)
    ranks = range(parallel_plan.size if parallel_plan else 1)
    given: dict[str, Any] = {"devices": tuple(ranks), "parallel_plan": parallel_plan}
    agents.give(0, "wait", **given)
    agents.begun(0)
    key = agents.give(1, "wait", checkpoint=CHECKPOINT, **given)
    revoke = api.Revoke(task=key, attempt=1, worker="worker-0", reason="stopped", force=True)
    pids: list[int] = []

    checkpoints = tmp_path / "checkpoints/one/fit-1/m01"
    left = checkpoints / checkpoint_file(sub_epoch=0, epoch=1, partition=1, attempt=1)

    def revoke_attempt(task: str) -> None:
        if task == key and not pids:
            checkpoints.mkdir(parents=True)
            left.touch()  # as if it had finished
            pids.extend(agents.begun(1, rank) for rank in ranks)
            assert agents.bench.decide(revoke) == ["done"]

    before_grant.append(revoke_attempt)
    agents.gate(0).touch()
    until(lambda: bool(pids) and not any(map(is_running, pids)), "the processes of a refused sub-epoch ends")
    agents.gate(1).touch()
    assert isinstance(
        agents.end_of(agents.give(1, "wait", attempt=2, checkpoint=CHECKPOINT, **given), 2), TaskCommitted
    )
    assert not list((tmp_path / "logs/tasks/one").glob("*p1.a1*.log"))
    assert not left.exists()
    attempts = [e.attempt for e in agents.bench.log() if isinstance(e, TaskStarted) and e.task == key]
    assert attempts == [2]


def test_a_crash_before_the_answer_of_the_store_is_reported_as_a_crash(
    agents: Agents, before_grant: list[Before]
) -> None:
    """It is not repeated without a failed attempt in the log."""
    agents.start()
    agents.give(0, "wait")
    agents.begun(0)
    key = agents.give(1, "crash", checkpoint=CHECKPOINT)
    pid = agents.begun(0)
    before_grant.append(lambda task: until(lambda: task != key or not is_running(pid), "the crash"))
    agents.gate(0).touch()
    event = agents.end_of(key)
    assert isinstance(event, TaskFailed)
    assert event.failure.kind is FailureKind.CRASH
    assert agents.log(1).count("crash attempt 1") == 1
