"""A worker process against the real store, with the test as controller and a fake handler as user code."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from tests.kvs_api.real import TOKEN, Service
from tests.worker.agent.agents import LIMIT_S, Agents, is_running, until


def test_every_end_of_user_code_is_reported_and_the_next_task_runs(agents: Agents, tmp_path: Path) -> None:
    """User code returns, raises, gives non-finite values, exits, is killed, or hangs; each end has its kind."""
    agents.start(CEREBRO_LOG_FORMAT="json")
    key = agents.give(0, "work")
    event = agents.end_of(key)
    assert isinstance(event, TaskCommitted)
    assert (event.result.rows, event.result.metrics) == (5, {"loss": 0.5})

    assert agents.failure(agents.give(1, "raise")) == (FailureKind.USER_ERROR, "ValueError: boom")
    assert agents.failure(agents.give(2, "nan")) == (FailureKind.NON_FINITE, "loss became nan")
    kind, message = agents.failure(agents.give(3, "exit"))
    assert (kind, "exit(3)" in message) == (FailureKind.USER_ERROR, True)
    kind, message = agents.failure(agents.give(4, "crash"))
    assert (kind, "SIGKILL" in message) == (FailureKind.CRASH, True)
    hung = agents.end_of(agents.give(5, "hang", hang_timeout_s=0.3))
    assert isinstance(hung, TaskFailed)
    assert (hung.failure.kind, "0.3 s" in hung.failure.message) == (FailureKind.HANG, True)
    assert "fake_handler.py" in hung.failure.traceback
    assert isinstance(agents.end_of(agents.give(6, "work")), TaskCommitted)

    points = agents.bench.store.live("one")
    assert {(p.task, p.values["loss"]) for p in points if p.values} == {
        (f"fit-1/train/m0{n}/e1/p{n}", 0.5) for n in (0, 6)
    }
    logs = {path.name: path.read_text() for path in (tmp_path / "logs" / "tasks" / "one").iterdir()}
    assert "boom" in logs["fit-1.train.m01.e1.p1.a1.log"]
    assert "work attempt 1" in logs["fit-1.train.m00.e1.p0.a1.log"]
    assert logs["fit-1.train.m05.e1.p5.a1.log"].count("in handle") == 2
    assert TOKEN not in "".join(logs.values())
    _check_attempt_records((tmp_path / "agent.log").read_text())


def test_the_start_of_a_process_is_reported(agents: Agents) -> None:
    """The wait for the process is in the first task's result, and in its live values before."""
    agents.start()
    first = agents.end_of(agents.give(0, "work"))
    assert isinstance(first, TaskCommitted)
    assert first.result.timings.start_s > 0
    assert [point.start_s for point in agents.bench.store.live("one")] == [first.result.timings.start_s]


def _check_attempt_records(log: str) -> None:
    """Starts and ends are structured records with context fields, without the output of user code."""
    records = [json.loads(line) for line in log.splitlines()]
    told = [record for record in records if record["message"].startswith("attempt ")][:4]
    assert [record["message"].split(" after")[0] for record in told] == [
        "attempt started", "attempt done", "attempt started", "attempt failed",
    ]  # fmt: skip
    for record in told:
        about = {name: record[name] for name in ("experiment", "run", "model", "worker", "attempt")}
        assert about == {
            "experiment": "one", "run": "fit-1", "model": record["sub_epoch"].split("/")[2], "worker": "worker-0",
            "attempt": 1,
        }  # fmt: skip
    assert [record["sub_epoch"][-2:] for record in told] == ["p0", "p0", "p1", "p1"]
    assert "ValueError: boom" in told[-1]["message"]
    assert "work attempt 1" not in log


def test_a_long_task_keeps_its_lease_and_can_be_revoked(agents: Agents) -> None:
    """Its lease is renewed far beyond its length, progress continues, and a revocation ends it without a commit."""
    lease_s = 0.5
    agents.start(lease_s=lease_s)
    key = agents.give(0, "wait")
    pid = agents.begun(0)
    began = time.monotonic()
    points = agents.bench.store.live
    until(
        lambda: len(points("one")) >= 8 and time.monotonic() > began + 2 * lease_s,
        "eight reports with points",
    )
    assert agents.bench.store.workers()[0].running == f"one/{key}"
    gentle = api.Revoke(task=key, attempt=1, worker="worker-0", reason="idle")
    assert agents.bench.decide(gentle) == ["refused"]
    assert agents.bench.decide(gentle.model_copy(update={"force": True})) == ["done"]
    until(lambda: not is_running(pid), "end of the task's process")
    assert isinstance(agents.end_of(agents.give(1, "work")), TaskCommitted)
    assert not [e for e in agents.bench.log() if isinstance(e, TaskCommitted) and e.task == key]


def test_the_child_of_a_killed_worker_ends_and_its_successor_works(agents: Agents) -> None:
    """After kill -9 of the agent its child ends too, and the fenced attempt can be revoked."""
    process = agents.start(lease_s=1.0)
    key = agents.give(0, "wait")
    pid = agents.begun(0)
    process.kill()
    process.wait()
    until(lambda: not is_running(pid), "end of the child")
    agents.start()
    agents.gate(0).touch()
    revoke = api.Revoke(task=key, attempt=1, worker="worker-0", reason="replaced", force=True)
    assert agents.bench.decide(revoke) == ["done"]
    agents.give(0, "wait", attempt=2)
    assert isinstance(agents.end_of(key, 2), TaskCommitted)


def test_a_replaced_worker_ends_by_itself(agents: Agents) -> None:
    """After a newer process of its name registers, it commits nothing and leaves no process."""
    old = agents.start(lease_s=1.0)
    key = agents.give(0, "wait")
    pid = agents.begun(0)
    agents.start()
    assert old.wait(LIMIT_S) == 0
    assert not is_running(pid)
    agents.gate(0).touch()
    assert [e.type for e in agents.bench.log() if getattr(e, "task", "") == key] == [
        "TaskAssigned",
        "TaskStarted",
    ]


@pytest.mark.slow
def test_a_worker_outlives_the_stores_restart(agents: Agents, service: Service) -> None:
    """The store is killed during a task; its lease survives and its commit counts once."""
    agents.start()
    key = agents.give(0, "wait")
    agents.begun(0)
    service.database.kill()
    agents.gate(0).touch()
    service.database.start()
    assert isinstance(agents.end_of(key), TaskCommitted)
    assert [e.type for e in agents.bench.log()] == ["TaskAssigned", "TaskStarted", "TaskCommitted"]


def test_user_code_cannot_fake_a_preemption(agents: Agents) -> None:
    """A preemption without a request is the user's error."""
    agents.start()
    for number, do in enumerate(("preempt", "lie")):
        kind, message = agents.failure(agents.give(number, do))
        assert kind is FailureKind.USER_ERROR
        assert "raised PreemptedError, but this worker was not asked to end" in message
        assert ("Traceback" in agents.log(number)) == (do == "preempt")
    assert isinstance(agents.end_of(agents.give(2, "work")), TaskCommitted)
