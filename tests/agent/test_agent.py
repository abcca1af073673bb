"""A worker as a process, against the real store: the test is its controller, a handler stands for user code."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.contract import api
from cerebro.contract.events import Event, TaskCommitted, TaskFailed
from cerebro.contract.records import CodeRecord
from cerebro.contract.tasks import FailureKind, TrainTask
from cerebro.kvs import KvsClient
from tests.kvs_api.bench import Bench
from tests.kvs_api.conftest import kvs, service, shared_service
from tests.kvs_api.real import TOKEN, Service

__all__ = ["kvs", "service", "shared_service"]

ROOT = Path(__file__).resolve().parents[2]
SHA = hashlib.sha256(b"code").hexdigest()
LIMIT_S = 40.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"


class Crew:
    """Workers under test and their controller."""

    def __init__(self, service: Service, kvs: KvsClient, root: Path) -> None:
        self._service, self._root = service, root
        self.bench = Bench(store=kvs, pass_a_moment=lambda: None)
        self.processes: list[subprocess.Popen[bytes]] = []
        kvs.put_code(CodeRecord(sha256=SHA, fingerprint=SHA, class_name="S", source="", encoded="code"))

    def start(self, *, lease_s: float = 5.0) -> subprocess.Popen[bytes]:
        """Start worker-0 and wait until it has registered anew."""
        before = self.incarnation()
        environment = {
            **os.environ,
            # The child looks for modules nowhere near the folder it runs in: a user's files lie there.
            "PYTHONPATH": str(ROOT),
            "CEREBRO_SERVER": self._service.address,
            "CEREBRO_TOKEN": TOKEN,
            "CEREBRO_WORKER": "worker-0",
            "CEREBRO_VOLUMES": str(self._root),
            "CEREBRO_CORES": "1",
            "CEREBRO_LEASE_S": str(lease_s),
        }
        command = [sys.executable, "-m", "cerebro.agent", "--handlers", "tests.agent.fake_handler"]
        with (self._root / "agent.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        until(lambda: self.incarnation() != before or process.poll() is not None, "registration")
        assert process.poll() is None, (self._root / "agent.log").read_text()
        return process

    def incarnation(self) -> str:
        """Of worker-0 as the store knows it."""
        return next((w.record.incarnation for w in self.bench.store.workers()), "")

    def give(self, partition: int, do: str, *, attempt: int = 1, hang_timeout_s: float = 60.0) -> str:
        """Assign a task; returns its key."""
        key = f"fit-1/train/m00/e1/p{partition}"
        body = TrainTask(
            key=key,
            experiment="one",
            run="fit-1",
            model="m00",
            hyperparams={"do": do, "file": str(self.gate(partition))},
            code=SHA,
            dataset="d",
            seed=0,
            hang_timeout_s=hang_timeout_s,
            epoch=1,
            partition=partition,
            unit=0,
            checkpoint=None,
            keep=(),
        )
        step = api.Assign(
            task=key, attempt=attempt, worker="worker-0", incarnation=self.incarnation(), body=body
        )
        assert self.bench.decide(step) == ["done"]
        return key

    def gate(self, partition: int) -> Path:
        """The file that lets a waiting task go on."""
        return self._root / f"gate-{partition}"

    def begun(self, partition: int) -> int:
        """Wait until a waiting task runs; returns the pid of its process."""
        path = self.gate(partition).with_suffix(".begun")
        until(lambda: path.exists() and path.read_text() != "", "the task begins")
        return int(path.read_text())

    def end_of(self, key: str, attempt: int = 1) -> Event:
        """Wait for the commit or failure of an attempt."""
        found: list[Event] = []

        def ended() -> bool:
            found[:] = [
                e
                for e in self.bench.log()
                if isinstance(e, TaskCommitted | TaskFailed) and (e.task, e.attempt) == (key, attempt)
            ]
            return bool(found)

        until(ended, f"end of {key}")
        return found[0]

    def failure(self, key: str) -> tuple[FailureKind, str]:
        """Kind and message of a failed task."""
        event = self.end_of(key)
        assert isinstance(event, TaskFailed)
        return event.failure.kind, event.failure.message


@pytest.fixture
def crew(service: Service, kvs: KvsClient, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(service, kvs, tmp_path)
    yield crew
    for process in crew.processes:
        process.kill()
        process.wait()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_every_end_of_user_code_is_told_and_the_next_task_runs(crew: Crew, tmp_path: Path) -> None:
    """It returns, raises, turns non-finite, exits, is killed, hangs: each has its kind, and the worker goes on."""
    crew.start()
    key = crew.give(0, "work")
    event = crew.end_of(key)
    assert isinstance(event, TaskCommitted)
    assert (event.result.rows, event.result.metrics) == (5, {"loss": 0.5})

    assert crew.failure(crew.give(1, "raise")) == (FailureKind.USER_ERROR, "ValueError: boom")
    assert crew.failure(crew.give(2, "nan")) == (FailureKind.NON_FINITE, "loss became nan")
    kind, message = crew.failure(crew.give(3, "exit"))
    assert (kind, "exit(3)" in message) == (FailureKind.USER_ERROR, True)
    kind, message = crew.failure(crew.give(4, "crash"))
    assert (kind, "SIGKILL" in message) == (FailureKind.CRASH, True)
    kind, message = crew.failure(crew.give(5, "hang", hang_timeout_s=0.3))
    assert (kind, "0.3 s" in message) == (FailureKind.HANG, True)
    assert isinstance(crew.end_of(crew.give(6, "work")), TaskCommitted)

    points = crew.bench.store.live("one")
    assert {(p.task, p.values["loss"]) for p in points if p.values} == {
        (f"fit-1/train/m00/e1/p{n}", 0.5) for n in (0, 6)
    }
    logs = {path.name: path.read_text() for path in (tmp_path / "logs" / "tasks" / "one").iterdir()}
    assert "boom" in logs["fit-1.train.m00.e1.p1.a1.log"]
    assert "work attempt 1" in logs["fit-1.train.m00.e1.p0.a1.log"]
    assert TOKEN not in "".join(logs.values())


def test_a_long_task_keeps_its_lease_and_can_be_taken_back(crew: Crew) -> None:
    """Far beyond one lease it is renewed, its signs of life go on, and a cancellation still reaches it."""
    lease_s = 0.5
    crew.start(lease_s=lease_s)
    key = crew.give(0, "wait")
    pid = crew.begun(0)
    began = time.monotonic()
    points = crew.bench.store.live
    until(
        lambda: len(points("one")) >= 8 and time.monotonic() > began + 2 * lease_s,
        "eight reports with points",
    )
    assert crew.bench.store.workers()[0].running == f"one/{key}"
    gentle = api.Revoke(task=key, attempt=1, worker="worker-0", reason="idle")
    assert crew.bench.decide(gentle) == ["refused"]
    assert crew.bench.decide(gentle.model_copy(update={"force": True})) == ["done"]
    until(lambda: not is_running(pid), "end of the task's process")
    assert isinstance(crew.end_of(crew.give(1, "work")), TaskCommitted)


def test_a_task_that_is_taken_back_ends_and_the_next_one_runs(crew: Crew) -> None:
    """The process is ended, nothing is committed, and the queue goes on."""
    crew.start()
    key = crew.give(0, "wait")
    pid = crew.begun(0)
    revoke = api.Revoke(task=key, attempt=1, worker="worker-0", reason="stopped", force=True)
    assert crew.bench.decide(revoke) == ["done"]
    assert isinstance(crew.end_of(crew.give(1, "work")), TaskCommitted)
    assert not is_running(pid)
    assert not [e for e in crew.bench.log() if isinstance(e, TaskCommitted) and e.task == key]


def test_a_worker_that_is_asked_to_end_gives_its_work_back(crew: Crew) -> None:
    """Running and queued attempts are preempted, not failed; no process stays."""
    process = crew.start()
    running, queued = crew.give(0, "wait"), crew.give(1, "work")
    pid = crew.begun(0)
    process.send_signal(signal.SIGTERM)
    for key in (running, queued):
        assert crew.failure(key)[0] is FailureKind.PREEMPTED
    assert process.wait(LIMIT_S) == 0
    assert not is_running(pid)


def test_the_child_of_a_killed_worker_ends_and_its_successor_works(crew: Crew) -> None:
    """kill -9 of the agent: its child goes with it, the fenced attempt can be taken back, the next one commits."""
    process = crew.start(lease_s=1.0)
    key = crew.give(0, "wait")
    pid = crew.begun(0)
    process.kill()
    process.wait()
    until(lambda: not is_running(pid), "end of the child")
    crew.start()
    crew.gate(0).touch()
    revoke = api.Revoke(task=key, attempt=1, worker="worker-0", reason="replaced", force=True)
    assert crew.bench.decide(revoke) == ["done"]
    crew.give(0, "wait", attempt=2)
    assert isinstance(crew.end_of(key, 2), TaskCommitted)


def test_a_superseded_worker_ends_by_itself(crew: Crew) -> None:
    """A newer process of the same name: the older one commits nothing and leaves no process."""
    old = crew.start(lease_s=1.0)
    key = crew.give(0, "wait")
    pid = crew.begun(0)
    crew.start()
    assert old.wait(LIMIT_S) == 0
    assert not is_running(pid)
    crew.gate(0).touch()
    assert [e.type for e in crew.bench.log() if getattr(e, "task", "") == key] == [
        "TaskAssigned",
        "TaskStarted",
    ]


def test_a_worker_outlives_the_stores_restart(crew: Crew, service: Service) -> None:
    """Its lease is kept and its commit counts once, though the store was killed in the middle of the task."""
    crew.start()
    key = crew.give(0, "wait")
    crew.begun(0)
    service.database.kill()
    crew.gate(0).touch()
    service.database.start()
    assert isinstance(crew.end_of(key), TaskCommitted)
    assert [e.type for e in crew.bench.log()] == ["TaskAssigned", "TaskStarted", "TaskCommitted"]
