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
_REMOTE, _STATE, _INODE = 2, 3, 9  # columns of /proc/PID/net/tcp
_ESTABLISHED = "01"


def connected(port: int) -> Probe:
    """The process holds a connection to a loopback port.

    For a client without an interface of its own: its imports and settings were good, and it has begun to
    work. A time that it must have lived for would be too short for a machine under load, and too long for any
    other.
    """
    remote = f"0100007F:{port:04X}"  # 127.0.0.1 as the kernel writes it

    def ask(pid: int) -> bool:
        try:
            table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
            rows = [line.split() for line in table]
            inodes = {row[_INODE] for row in rows if (row[_REMOTE], row[_STATE]) == (remote, _ESTABLISHED)}
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:  # it has ended
            return False
        return any(_is_socket(link, inodes) for link in descriptors)

    return ask


def _is_socket(link: Path, inodes: set[str]) -> bool:
    try:
        return str(link.readlink()).removeprefix("socket:[").removesuffix("]") in inodes
    except OSError:  # closed since the folder was listed
        return False


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
