"""A rank of an attempt that this worker leads, on another worker: spoken to as a child process is.

What is sent to it waits until that worker has connected. From then on messages go back and forth unread: what they say
is for the group and for the child at the other end.
"""

from __future__ import annotations

import os
import queue
import selectors
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind
from cerebro.worker.agent.channel import Channel

JOIN_S = 60.0
"""How long the other worker may take to come. Its devices were idle when it was asked."""
_READ_BYTES = 1 << 16


class RemoteRank:
    """One of them. Made by the agent's slot; `arrive` is for the endpoint.

    Args:
        described: its worker and device, for people.
        join_s: see `JOIN_S`.

    Attributes:
        batch, operations: how far it is, as it last said: as in `RankPage`.
    """

    def __init__(self, described: str, join_s: float = JOIN_S) -> None:
        self.described, self._join_s = described, join_s
        self.is_ready = False
        self.is_resting, self.tasks, self.code = False, 0, ""
        self.batch = self.operations = 0
        ours, self._theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.end = os.eventfd(0)
        """Never readable: that its worker is gone closes the channel."""
        self._has_come = self._is_over = False
        self._lock = threading.Lock()
        self._arrivals: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        threading.Thread(target=self._relay, name=f"gang {described}", daemon=True).start()

    def arrive(self, end: socket.socket) -> None:
        """Its worker has connected. Safe in any thread."""
        with self._lock:
            if not self._is_over:
                self._arrivals.put(end)
                return
        end.close()

    def run(
        self,
        body: Any,
        attempt: int,
        codes: dict[str, str],
        log: Path,
        *,
        asked: float,
        ranks: Mapping[str, Any] | None = None,
    ) -> None:
        """Have it begin; see `ChildProcess.run`. Task and code its worker has from the store, as this one has."""
        self.tasks += 1
        self.channel.send({"do": "run", "ranks": dict(ranks or {})})

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message, if it is there."""
        with suppress(OSError):
            self.channel.send(message)

    def knows(self, codes: frozenset[str]) -> bool:
        """Its worker sees to that."""
        return False

    def is_alive(self) -> bool:
        """Whether it can be spoken to, as far as was noticed."""
        return self.end >= 0 and not self.channel.is_closed

    def is_stopped(self) -> bool:
        """Nobody here can tell."""
        return False

    def explained(self, failure: Failure) -> Failure:
        """Its worker has explained it."""
        return failure

    def reap(self) -> Failure:
        """How it came that it cannot be spoken to."""
        said = (
            "its worker is gone" if self._has_come else f"its worker did not come within {self._join_s:g} s"
        )
        self.kill()
        return Failure(kind=FailureKind.MEMBER_LOST, message=said)

    def end_processes(self) -> None:
        """Its worker ends them when the connection is gone."""

    def kill(self) -> None:
        """Part with it. Calling twice is safe."""
        if self.end >= 0:
            self.channel.close()
            os.close(self.end)
            self.end = -1
            with self._lock:
                self._is_over = True
            self._arrivals.put(None)

    def _relay(self) -> None:
        with self._theirs:
            try:
                remote = self._arrivals.get(timeout=self._join_s)
            except queue.Empty:
                remote = None
            if remote is None:
                self._end_waiting()
                return
            self._has_come = True
            with remote, suppress(OSError):
                relay(self._theirs, remote)

    def _end_waiting(self) -> None:
        """Who comes from now on is too late."""
        with self._lock:
            self._is_over = True
        while not self._arrivals.empty():
            late = self._arrivals.get()
            if late is not None:
                late.close()


def relay(one: socket.socket, other: socket.socket) -> None:
    """Send on what comes from either, until one of them is gone and all that it has said is sent on."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(_READ_BYTES)
                if not data:
                    return
                with suppress(OSError):  # what it said before it went is still to be read
                    key.data.sendall(data)
