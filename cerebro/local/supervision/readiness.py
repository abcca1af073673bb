"""Whether a service does its work yet: one question per kind, asked over its own interface.

Written on plain sockets. An HTTP library would add a third to the supervisor's memory, for requests of three
lines to servers that we start ourselves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from cerebro.local.supervision.ports import HOST

Probe = Callable[[], bool]
"""Answers within about a second; false while not ready."""

_TIMEOUT_S = 1.0


def redis(path: Path) -> Probe:
    """The database answers; while it still reads its append-only file it says LOADING instead."""

    def probe() -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(str(path))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    return probe


def http(port: int, path: str = "/health") -> Probe:
    """A GET is answered with status 200."""

    def probe() -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
                connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
                # Read until the server closes, so that it does not write to a closed socket.
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                return answer.split(b" ", 2)[1:2] == [b"200"]
        except OSError:
            return False

    return probe
