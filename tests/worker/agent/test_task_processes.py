"""The parent of task processes survives a refused fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.runtime.volumes import Volumes
from cerebro.worker.child import task_processes
from cerebro.worker.child.context import Context
from cerebro.worker.child.task_processes import TaskProcesses, _TaskProcess
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import (
    AgentGone,
    FromTaskProcess,
    Preload,
    ServeAgent,
    TaskFinished,
    ToChild,
    ToTaskProcess,
)
from tests.kvs_api.occupancy_contract import sub_epoch_body

FULL = BlockingIOError(11, "Resource temporarily unavailable")


class Process:
    """A fake process with scripted messages and recorded calls."""

    def __init__(self, name: str, notes: list[Any], *messages: FromTaskProcess) -> None:
        self.pid, self.log = 0, None
        self._name, self._notes, self._messages = name, notes, iter(messages)

    def receive(self, ending: object) -> FromTaskProcess:
        """See `_TaskProcess`."""
        return next(self._messages)

    def send(self, message: ToTaskProcess) -> None:
        """See `_TaskProcess`."""
        assert isinstance(message, ServeAgent)
        self._notes.append((self._name, message.unread))

    def reap(self) -> int:
        """See `_TaskProcess`."""
        self._notes.append((self._name, "reaped"))
        return 0


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(task_processes, "_end_leftovers", lambda but: [])
    return []


@pytest.mark.parametrize("must_exit_first", [False, True])
def test_a_refused_fork_costs_no_task(
    notes: list[Any], monkeypatch: pytest.MonkeyPatch, *, must_exit_first: bool
) -> None:
    """A preload is optional. Reaping the finished process makes room, and the next process gets the result."""
    finished = TaskFinished(unread="result", log=Path("log"), codes={}, must_exit_first=must_exit_first)
    preload = Preload(body=sub_epoch_body("fit-1/train/m00/e1/p0", None))
    running = Process("first", notes, preload, finished)
    following = Process("second", notes, AgentGone())
    answers: Iterator[Any] = iter([FULL, FULL, following])

    def fork(*others: object) -> Any:
        answer = next(answers)
        notes.append("forked" if answer is following else "refused")
        if answer is FULL:
            raise FULL
        return answer

    channel = cast(Channel[ToChild], None)
    context = Context(channel, Volumes.from_environment({"CEREBRO_VOLUMES": "/none"}), cores=1)
    parent = TaskProcesses(channel, context, lambda *_: "", lambda *_: None)
    monkeypatch.setattr(parent, "_fork", fork)
    assert parent._follow(cast(_TaskProcess, running)) == b""
    steps = ["refused", "refused", ("first", "reaped"), "forked", ("second", "result")]
    assert notes == [*steps, ("second", "reaped")]


@pytest.mark.processes
def test_a_process_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent could never reap it."""
    requests: list[int] = []

    def refuse(pid: int) -> int:
        requests.append(pid)
        raise FULL

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(BlockingIOError):
        _TaskProcess(lambda channel: cast(None, channel.receive()), ())
    with pytest.raises(ChildProcessError):
        os.waitpid(requests[0], os.WNOHANG)
