"""A rank on another worker, with the interface of a child process.

The leader's `Execution` creates it for a `ChildGroup`; `GangEndpoint` hands over the connection. Messages wait until
that worker connects, for up to 60 s. Then they pass through unread, between the group and the child.
"""

from __future__ import annotations

import os
import queue
import selectors
import socket
import threading
from contextlib import suppress
from pathlib import Path

from cerebro.contract.base import Contract
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_MEMBER, FromMember, Ranks, StartRank

JOIN_S = 60.0
"""Seconds for the other worker to connect. Its devices were idle when it was asked."""
_READ_BYTES = 1 << 16


class RemoteRank:
    """A rank on another worker. The slot creates it; the endpoint calls `arrive`.

    Args:
        described: its worker and device, for people.
        join_s: see `JOIN_S`.

    Attributes:
        batch, operations: latest progress, as in `RankPage`.
    """

    def __init__(self, described: str, join_s: float = JOIN_S) -> None:
        self.described, self._join_s = described, join_s
        self.is_ready = False
        self.has_freed_memory, self.tasks, self.code = False, 0, ""
        self.batch = self.operations = 0
        ours, self._theirs = socket.socketpair()
        self.channel: Channel[FromMember] = Channel(ours, FROM_MEMBER)
        self.end = os.eventfd(0)
        """Never readable: losing the worker closes the channel."""
        self._has_come = self._is_over = False
        self._lock = threading.Lock()
        self._arrivals: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        threading.Thread(target=self._relay, name=f"gang {described}", daemon=True).start()

    def arrive(self, end: socket.socket) -> None:
        """Hand over the worker's connection. Thread-safe."""
        with self._lock:
            if not self._is_over:
                self._arrivals.put(end)
                return
        end.close()

    def run(
        self,
        body: TaskBody,
        attempt: int,
        codes: dict[str, str],
        log: Path,
        *,
        received_at: float,
        ranks: Ranks | None = None,
    ) -> None:
        """Start the rank; see `ChildProcess.run`. Its worker fetches task and code from the store."""
        self.tasks += 1
        assert ranks is not None
        self.channel.send(StartRank(ranks=ranks))

    def send(self, message: Contract) -> None:
        """Send a message if it is connected."""
        with suppress(OSError):
            self.channel.send(message)

    def has_code(self, codes: frozenset[str]) -> bool:
        """Return False: its worker handles user code."""
        return False

    def is_alive(self) -> bool:
        """True unless the connection is known to be lost."""
        return self.end >= 0 and not self.channel.is_closed

    def is_stopped(self) -> bool:
        """Return False: unknown on this worker."""
        return False

    def explained(self, failure: Failure) -> Failure:
        """Return the failure unchanged: its worker has explained it."""
        return failure

    def reap(self) -> Failure:
        """Explain why the rank is unreachable."""
        self.kill()
        reason = "is gone" if self._has_come else f"did not come within {self._join_s:g} s"
        return Failure(kind=FailureKind.MEMBER_LOST, message=f"its worker {reason}")

    def end_processes(self) -> None:
        """Do nothing: its worker ends them when the connection closes."""

    def kill(self) -> None:
        """Close the connection. Calling twice is safe."""
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
        with self._lock:
            self._is_over = True
        while not self._arrivals.empty():
            late = self._arrivals.get()
            if late is not None:
                late.close()


def relay(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes in both directions until one side has closed and its bytes are sent."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(_READ_BYTES)
                if not data:
                    return
                with suppress(OSError):  # bytes sent before the close are still unread
                    key.data.sendall(data)
