"""A rank on another worker, with the interface of a child process.

The leader's `Execution` creates it for a `ChildGroup`; `GangEndpoint` hands over the connection. Messages wait up to
60 s for the member's worker to connect. Then bytes are relayed without parsing and without a timeout: `ChildGroup`
finds hangs from `batch` and `operations`, TCP keepalive finds a dead machine.
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
    """A rank on another worker. `Execution` creates it; the endpoint calls `arrive`.

    Args:
        description: its worker and device, for people.
        join_s: see `JOIN_S`.

    Attributes:
        batch, operations: batches begun and collective operations, from the child's reports.
    """

    def __init__(self, description: str, join_s: float = JOIN_S) -> None:
        self.description, self._join_s = description, join_s
        self.is_ready = False
        self.has_freed_memory, self.tasks, self.code = False, 0, ""
        self.batch = self.operations = 0
        ours, self._theirs = socket.socketpair()
        self.channel: Channel[FromMember] = Channel(ours, FROM_MEMBER)
        self.end = os.eventfd(0)
        """Never readable: losing the worker closes the channel."""
        self._has_connected = self._is_over = False
        self._lock = threading.Lock()
        self._arrivals: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        threading.Thread(target=self._relay, name=f"gang {description}", daemon=True).start()

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
        """Send a message; drop it if the connection has ended."""
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
        reason = "is gone" if self._has_connected else f"did not come within {self._join_s:g} s"
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
            self._has_connected = True
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
