"""A gate that user code knocks at and the test opens: how a test gets hold of the middle of a sub-epoch without
sleeping."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import dataclass

import pytest

from tests.waiting import HANG_S, join


@dataclass(frozen=True, kw_only=True)
class Knock:
    """Somebody stands at the gate: its process, its worker, what it said."""

    pid: int
    worker: str
    what: str
    connection: socket.socket

    def let_through(self) -> None:
        """Let this one go on."""
        try:
            self.connection.sendall(b"!")
        except OSError:
            pass  # it was killed meanwhile
        self.connection.close()


class Gate:
    """Closed at first; once opened, everybody goes through at once."""

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
        """The next one who stands at the gate, in order of arrival."""
        try:
            return self._knocks.get(timeout=timeout_s)
        except queue.Empty:
            pytest.fail(f"nobody came to the gate within {timeout_s:g} s")

    def open(self) -> None:
        """Let everybody through, now and later."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for knock in waiting:
            knock.let_through()

    def close(self) -> None:
        """Hold those who come from now on."""
        with self._lock:
            self._is_open = False

    def end(self) -> None:
        """Open for good and stop listening."""
        self.open()
        # Closing a socket does not wake a thread that accepts on it; shutting it down does.
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
