"""Server processes for tests: reserved ports and readiness."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from tests.forking import Forked
from tests.waiting import HANG_S, until


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a loopback port for one server, also while the server is down.

    The socket that holds the port never listens, so a server with SO_REUSEADDR (all servers set it) can use the port.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def first_answer(
    url: str, process: subprocess.Popen[bytes] | Forked, log: Path | None = None
) -> urllib3.BaseHTTPResponse:
    """Poll a starting server until it answers, and return its answer.

    Raises:
        AssertionError: its process has ended, or the test hangs.
    """

    def answer() -> urllib3.BaseHTTPResponse | None:
        assert process.poll() is None, log.read_text() if log else f"the server of {url} has ended"
        try:
            return http.request("GET", url, retries=False, timeout=HANG_S)
        except urllib3.exceptions.HTTPError:
            return None

    with urllib3.PoolManager() as http:
        return until(answer, f"an answer from {url}")
