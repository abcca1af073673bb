"""Whether a service does its work yet: one question per kind, asked over its own interface.

Written on plain sockets. An HTTP library would add a third to the supervisor's memory, for requests of three
lines to servers that we start ourselves.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

from cerebro.local.ports import HOST

Probe = Callable[[int], bool]
"""Asked with a process's pid, answers within about a second; false while not ready."""

_TIMEOUT_S = 1.0
_LARGEST_ANSWER = 1 << 20
_FRESH_S = 10.0


def redis(path: Path) -> Probe:
    """The database answers; while it still reads its append-only file it says LOADING instead."""

    def ask(pid: int) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(str(path))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    return ask


def http(port: int, path: str) -> Probe:
    """A GET is answered with status 200."""
    return lambda pid: get(port, path) is not None


def registered(port: int, token: str, worker: str) -> Probe:
    """The store knows this worker, as this process, and has heard of it lately."""

    def ask(pid: int) -> bool:
        body = get(port, "/v1/workers", token=token)
        if body is None:
            return False
        try:
            return any(_is_fresh(status, worker, pid) for status in json.loads(body)["workers"])
        except (ValueError, KeyError, TypeError):
            return False

    return ask


def _is_fresh(status: dict[str, object], worker: str, pid: int) -> bool:
    record, silent_s = status["record"], status["silent_s"]
    if not isinstance(record, dict) or not isinstance(silent_s, int | float):
        return False
    return record["worker"] == worker and record["pid"] == pid and silent_s < _FRESH_S


def get(port: int, path: str, *, token: str | None = None) -> bytes | None:
    """The body of a GET on the loopback interface; None unless it was answered in time with status 200."""
    # HTTP/1.0: the answer is not chunked, and ends when the server closes.
    request = f"GET {path} HTTP/1.0\r\nHost: {HOST}:{port}\r\n"
    if token is not None:
        request += f"Authorization: Bearer {token}\r\n"
    answer = b""
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(f"{request}\r\n".encode())
            while piece := connection.recv(1 << 16):
                answer += piece
                if len(answer) > _LARGEST_ANSWER:
                    return None
    except OSError:
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    return body if head.split(b" ", 2)[1:2] == [b"200"] else None
