"""Which rank of a group is blamed when another rank reports first. Time is the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.worker.agent.processes import group_channel
from cerebro.worker.agent.processes.group_channel import GroupChannel
from cerebro.worker.health.root_cause import decisive
from cerebro.worker.protocol.messages import Done, Failed
from tests.worker.agent.fake_handler import LOST_PEER

LOST = Failure(kind=FailureKind.USER_ERROR, message=f"RuntimeError: {LOST_PEER}")


class Rank:
    """A fake rank process with scripted messages and an optional exit."""

    end = 0

    def __init__(self, *messages: Any) -> None:
        self._messages = iter(messages)
        self.is_running = True
        self.channel = SimpleNamespace(
            fileno=lambda: 0, is_closed=False, pending=lambda: next(self._messages, None)
        )

    def is_alive(self) -> bool:
        """True while it runs."""
        return self.is_running


def test_a_death_detected_late_explains_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes seconds to end a process. The other rank reports its lost connection before."""
    now, dying = 0.0, Rank()

    class Sources:
        def register(self, *_: Any) -> None: ...

        def unregister(self, *_: Any) -> None: ...

        def poll(self, timeout_s: float) -> None:
            nonlocal now
            now += min(timeout_s, 0.1)
            dying.is_running = now < 5.0

    monkeypatch.setattr(group_channel, "select", SimpleNamespace(epoll=Sources, EPOLLIN=1))
    monkeypatch.setattr(group_channel, "time", SimpleNamespace(monotonic=lambda: now))
    children: Any = (Rank(Failed(failure=LOST, failed_at=0.0)), dying)
    channel = GroupChannel(children, lambda: Done(result=TaskResult()))
    channel.pending()
    assert decisive(channel.ends.values()).rank == 1
