"""Readiness probes: does a starting service answer yet? One probe for the database, one for HTTP services.

`ServiceProcess` calls them until the first success; `liveness` watches afterwards. ``cerebro doctor`` calls them too.
Written on plain sockets: an HTTP library would add a third to the supervisor's memory, for requests of three lines.
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
    """Return a probe that expects PONG; while the database reads its append-only file it answers LOADING instead."""

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
    """Return a probe that expects status 200 for a GET."""

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
