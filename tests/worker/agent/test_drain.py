"""A worker that shuts down preempts running tasks and releases queued ones."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from pathlib import Path

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.volumes import Volumes, checkpoint_file
from tests.forking import Forked
from tests.worker.agent.agents import LIMIT_S, Agents, is_running, until

LONG_S = 30.0
SHORT_S = 0.5


def terminate(process: Forked | subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, as a drain, a rollout and a spot notice do."""
    process.send_signal(signal.SIGTERM)


def test_running_tasks_are_preempted_at_their_next_batch(agents: Agents) -> None:
    """This holds even if user code catches the preemption, or returns or raises something else."""
    behaviours = ("batches", "careful", "greedy", "confused")
    process = agents.start(grace_s=LONG_S, devices=len(behaviours))
    keys = [agents.give(number, do, devices=(number,)) for number, do in enumerate(behaviours)]
    pids = [agents.begun(number) for number in range(len(keys))]
    terminate(process)
    for key in keys:
        kind, message = agents.failure(key)
        assert kind is FailureKind.PREEMPTED
        assert message.startswith("SIGTERM: worker-0 was asked to end; it was left between two batches")
    assert process.wait(LIMIT_S) == 0
    assert not any(map(is_running, pids))
    assert not [event for event in agents.bench.log() if isinstance(event, TaskCommitted)]


def test_a_signal_that_another_thread_receives_drains(agents: Agents) -> None:
    """The kernel chooses the thread, and the signal does not interrupt the main thread's system call."""
    process = agents.start(grace_s=LONG_S)
    task = agents.give(0, "batches")
    agents.begun(0)
    other = next(
        thread
        for thread in (int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir())
        if thread != process.pid
    )
    assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
    assert agents.failure(task)[0] is FailureKind.PREEMPTED
    assert process.wait(LIMIT_S) == 0


def test_queued_tasks_are_released_and_a_task_that_ends_in_time_is_committed(agents: Agents) -> None:
    """The running task keeps its lease beyond the lease time, and its result is committed."""
    process = agents.start(lease_s=0.5, grace_s=LONG_S)
    running, queued = agents.give(0, "wait"), agents.give(1, "work")
    agents.begun(0)
    terminate(process)
    kind, message = agents.failure(queued)
    assert (kind, message) == (
        FailureKind.PREEMPTED,
        "SIGTERM: worker-0 was asked to end before this task began",
    )
    late = agents.give(2, "work")
    assert agents.failure(late)[0] is FailureKind.PREEMPTED
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 1.0, "two lengths of the lease")
    agents.gate(0).touch()
    assert isinstance(agents.end_of(running), TaskCommitted)
    assert process.wait(LIMIT_S) == 0


def test_a_batch_that_never_ends_is_killed_after_the_grace_period(agents: Agents, tmp_path: Path) -> None:
    """Its temporary checkpoint is removed, and other files stay. It does not delay the task of another device."""
    process = agents.start(grace_s=SHORT_S, devices=2)
    key, other = agents.give(0, "wait", devices=(0,)), agents.give(1, "batches", devices=(1,))
    pid, _ = agents.begun(0), agents.begun(1)
    folder = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}).model_checkpoints(
        "one", "fit-1", "m00"
    )
    folder.mkdir(parents=True)
    mine = checkpoint_file(sub_epoch=0, epoch=1, partition=0, attempt=1)
    others = {
        checkpoint_file(sub_epoch=0, epoch=1, partition=0, attempt=2),
        f".{checkpoint_file(sub_epoch=0, epoch=1, partition=0, attempt=2)}.1-aaaa.aside",
    }
    for name in (f".{mine}.{pid}-aaaa.aside", *others):
        (folder / name).touch()
    began = time.monotonic()
    terminate(process)
    assert "it was left between two batches" in agents.failure(other)[1]
    kind, message = agents.failure(key)
    assert kind is FailureKind.PREEMPTED
    assert "it came to no batch boundary in time" in message
    assert process.wait(LIMIT_S) == 0
    assert time.monotonic() - began >= SHORT_S
    assert not is_running(pid)
    assert {path.name for path in folder.iterdir()} == others
