"""Worker processes against the real store, with the test as controller and a fake handler as user code."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cerebro.contract.events import Event, TaskCommitted, TaskFailed
from cerebro.contract.failure_rules import FailureRule
from cerebro.contract.parallel_plans import FUSED, ParallelPlan
from cerebro.contract.records import CodeRecord
from cerebro.contract.rest import api
from cerebro.contract.steps import FusedAssignment
from cerebro.contract.tasks.bodies import Position, TaskBody, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.kvs.client import KvsClient
from cerebro.usercode.encoding import encode
from tests.forking import Forked, Forks
from tests.kvs_api.bench import Bench
from tests.kvs_api.real import TOKEN, Service
from tests.waiting import HANG_S
from tests.worker.agent import rights
from tests.worker.agent.forked_children import WARM

ROOT = Path(__file__).resolve().parents[3]
SHA = hashlib.sha256(b"code").hexdigest()
LIMIT_S = HANG_S
_AGENT = "cerebro.worker.agent"
_FAKE = "tests.worker.agent.fake_handler"


def agent_forks(handler: str = _FAKE) -> Forks:
    """Start agents with a container's rights; their children fork with the handler imported."""
    return Forks(
        f"{_AGENT}.__main__",
        first="tests.worker.agent.forked_children:prepare",
        environment=os.environ | {WARM: handler},
    )


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        # Without a pause this loop would take processor time from the agents.
        threading.Event().wait(0.02)


class Agents:
    """The workers under test and their controller."""

    def __init__(self, service: Service, kvs: KvsClient, root: Path, forks: Forks) -> None:
        self._service, self._root, self._kvs, self._forks = service, root, kvs, forks
        self.bench = Bench(store=kvs, pass_a_moment=lambda: None)
        self.processes: list[Forked | subprocess.Popen[bytes]] = []
        kvs.put_code(CodeRecord(sha256=SHA, fingerprint=SHA, class_name="S", source="", encoded="code"))

    def start(
        self,
        *,
        lease_s: float = 5.0,
        grace_s: float = 20.0,
        devices: int = 1,
        is_fork: bool = True,
        group: Path | None = None,
        handler: str = _FAKE,
        **variables: str,
    ) -> Forked | subprocess.Popen[bytes]:
        """Start worker-0 and wait until it has registered.

        Args:
            devices: number of devices; each of several has two threads.
            is_fork: True to fork the agent and its children from a process with their imports.
            group: cgroup to start in; the agent is then no fork.
            handler: package of the handler, fake or real; or several.
        """
        before = self.incarnation()
        environment = {
            **os.environ,
            # The child's module path excludes its working directory, which has the user's files.
            "PYTHONPATH": str(ROOT),
            "CEREBRO_SERVER": self._service.address,
            "CEREBRO_TOKEN": TOKEN,
            "CEREBRO_WORKER": "worker-0",
            "CEREBRO_VOLUMES": str(self._root),
            "CEREBRO_CORES": "1" if devices == 1 else str(2 * devices),
            "CEREBRO_DEVICES": str(devices),
            "CEREBRO_LEASE_S": str(lease_s),
            "CEREBRO_GRACE_S": str(grace_s),
            **variables,
        }
        process: Forked | subprocess.Popen[bytes]
        with (self._root / "agent.log").open("ab") as log:
            if is_fork and group is None:
                process = self._forks.start(
                    ("--handlers", *handler.split()), environment=environment, stdout=log, stderr=log
                )
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", _AGENT, "--handlers", *handler.split()],
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=partial(_begin, group),  # noqa: PLW1509 - system calls only
                )
        self.processes.append(process)
        until(lambda: self.incarnation() != before or process.poll() is not None, "registration")
        assert process.poll() is None, (self._root / "agent.log").read_text()
        return process

    def incarnation(self) -> str:
        """Return worker-0's incarnation in the store."""
        return next((w.record.incarnation for w in self.bench.store.workers()), "")

    def learn(self, spec: object) -> str:
        """Store user code; return its hash."""
        code = encode(spec)
        self._kvs.put_code(code)
        return code.sha256

    def give(
        self,
        partition: int,
        do: str,
        *,
        attempt: int = 1,
        hang_timeout_s: float = 4 * HANG_S,
        rules: tuple[FailureRule, ...] = (),
        code: str = SHA,
        checkpoint: CheckpointRef | None = None,
        devices: tuple[int, ...] = (0,),
        parallel_plan: ParallelPlan | None = None,
    ) -> str:
        """Assign a task of a new model; return its key.

        Args:
            do: the task's behaviour; for ranks, one per rank separated by a bar.
        """
        model = f"m{partition:02}"
        key = f"fit-1/train/{model}/e1/p{partition}"
        body = TrainTask(
            key=key,
            experiment="one",
            run="fit-1",
            model=model,
            hyperparams={"do": do, "file": str(self.gate(partition))},
            code=code,
            dataset="d",
            seed=0,
            hang_timeout_s=hang_timeout_s,
            rules=rules,
            epoch=1,
            partition=partition,
            sub_epoch=0,
            position=Position(),
            checkpoint=checkpoint,
            parallel_plan=parallel_plan,
            keep=(),
        )
        self.assign(body, attempt=attempt, devices=devices)
        return key

    def assign(self, body: TaskBody, *, attempt: int, devices: tuple[int, ...]) -> None:
        step = api.Assign(
            task=body.key,
            attempt=attempt,
            worker="worker-0",
            incarnation=self.incarnation(),
            devices=devices,
            body=body,
        )
        assert self.bench.decide(step) == ["done"]

    def give_group(self, *does: str, attempt: int = 1) -> list[str]:
        """Assign sub-epochs of new models on one partition as a fused group; return their keys."""
        plan = ParallelPlan(technique=FUSED, params={"models": len(does)}, processes="one")
        bodies = [self._member(number, do, plan) for number, do in enumerate(does)]
        first, *others = bodies
        step = api.Assign(
            task=first.key,
            attempt=attempt,
            worker="worker-0",
            incarnation=self.incarnation(),
            fused=tuple(FusedAssignment(task=each.key, attempt=attempt, body=each) for each in others),
            body=first,
        )
        assert self.bench.decide(step) == ["done"]
        return [body.key for body in bodies]

    def _member(self, number: int, do: str, plan: ParallelPlan) -> TrainTask:
        model = f"g{number:02}"
        return TrainTask(
            key=f"fit-1/train/{model}/e1/p0",
            experiment="one",
            run="fit-1",
            model=model,
            hyperparams={"do": do, "file": str(self.gate(number))},
            code=SHA,
            dataset="d",
            seed=0,
            hang_timeout_s=4 * HANG_S,
            epoch=1,
            partition=0,
            sub_epoch=0,
            position=Position(),
            checkpoint=None,
            parallel_plan=plan,
        )

    def log(self, partition: int, attempt: int = 1) -> str:
        """Return the output of a task's process."""
        return (
            self._root / f"logs/tasks/one/fit-1.train.m{partition:02}.e1.p{partition}.a{attempt}.log"
        ).read_text()

    @property
    def log_folder(self) -> Path:
        """The folder of task logs."""
        return self._root / "logs/tasks/one"

    def gate(self, partition: int) -> Path:
        """The file that releases a waiting task."""
        return self._root / f"gate-{partition}"

    def begun(self, partition: int, rank: int = 0) -> int:
        """Wait until a waiting task runs; return its process id."""
        path = self.gate(partition).with_suffix(f".begun{rank or ''}")
        until(lambda: path.exists() and path.read_text() != "", "the task begins")
        return int(path.read_text())

    def end_of(self, key: str, attempt: int = 1) -> Event:
        """Wait for the commit or failure of an attempt."""
        deadline, log = time.monotonic() + LIMIT_S, list[Event]()
        while True:
            for event in log:
                if isinstance(event, TaskCommitted | TaskFailed) and (event.task, event.attempt) == (
                    key,
                    attempt,
                ):
                    return event
            assert time.monotonic() < deadline, f"never happened: end of {key}"
            log += self.bench.store.events("one", len(log), wait_s=1.0)

    def failure(self, key: str, attempt: int = 1) -> tuple[FailureKind, str]:
        """Return the kind and message of a failed task."""
        event = self.end_of(key, attempt)
        assert isinstance(event, TaskFailed)
        return event.failure.kind, event.failure.message


def _begin(group: Path | None) -> None:
    """Set up the process that becomes the agent."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    rights.drop()


def is_running(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
