"""A gate that blocks user code until the test opens it, so tests need no sleeps."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import dataclass

import pytest

from tests.waiting import HANG_S, join


@dataclass(frozen=True, kw_only=True)
class Knock:
    """A process that waits at the gate: its pid, worker and message."""

    pid: int
    worker: str
    what: str
    connection: socket.socket

    def let_through(self) -> None:
        """Let this process continue."""
        try:
            self.connection.sendall(b"!")
        except OSError:
            pass  # it was killed while it waited
        self.connection.close()


class Gate:
    """A gate that starts closed; once open it blocks no process."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._knocks: queue.Queue[Knock] = queue.Queue()
        self._lock = threading.Lock()
        self._is_open = False
        self._waiting: list[Knock] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def knock(self, timeout_s: float = HANG_S) -> Knock:
        """Return the next waiting process, in order of arrival."""
        try:
            return self._knocks.get(timeout=timeout_s)
        except queue.Empty:
            pytest.fail(f"nobody came to the gate within {timeout_s:g} s")

    def open(self) -> None:
        """Release all processes, now and later."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for knock in waiting:
            knock.let_through()

    def close(self) -> None:
        """Block processes that arrive from now."""
        with self._lock:
            self._is_open = False

    def end(self) -> None:
        """Open permanently and stop listening."""
        self.open()
        # Closing a socket does not wake a thread in accept(); shutdown does.
        self._listener.shutdown(socket.SHUT_RDWR)
        join(self._thread)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection.makefile() as lines:
                pid, worker, what = (lines.readline().rstrip("\n") + "  ").split(" ", 2)
            if not pid:
                connection.close()
                continue
            knock = Knock(pid=int(pid), worker=worker, what=what.strip(), connection=connection)
            with self._lock:
                is_open = self._is_open
                if not is_open:
                    self._waiting.append(knock)
            self._knocks.put(knock)
            if is_open:
                knock.let_through()
