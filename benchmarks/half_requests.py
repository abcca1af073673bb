"""Requests at the dispatcher and at kvs_api during hundreds of half-sent requests.

The services are the real processes, started with the usual limit of 1024 open files. Each half-sent request is a
connection with part of its headers; a connection that the server closes is replaced at once. Loopback only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from benchmarks.figure import Figure
from benchmarks.services import control_plane
from cerebro.errors import ClusterError

HALVES, MANY = 500, 1100
P99_MS = 1000.0

_HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
_REQUESTS = 200
_TIMEOUT_S = 30.0
_USUAL_FILES = 1024


def benchmark() -> list[Figure]:
    """Measure both services with 500 half-sent requests, then with more than the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The services have the usual soft limit, as on a laptop; this process must hold all half-sent requests.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, _USUAL_FILES), hard))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder,
            control_plane(Path(folder), ("redis", "kvs_api", "dispatcher")) as plane,
        ):
            wanted = 2 * MANY
            resource.setrlimit(
                resource.RLIMIT_NOFILE,
                (wanted if hard == resource.RLIM_INFINITY else min(max(soft, wanted), hard), hard),
            )
            pages = {"dispatcher": f"{plane.page}/experiments", "kvs_api": f"{plane.server}/v1/queue"}
            return [
                _figure(name, url, plane.token, count)
                for count in (HALVES, MANY)
                for name, url in pages.items()
            ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _figure(name: str, url: str, token: str, count: int) -> Figure:
    alone = _times(url, token)
    with _halves(url, count) as halves:
        found = _times(url, token)
    times = statistics.quantiles(found, n=100)
    return Figure(
        what=f"{name}: requests beside {count:,} halves of requests, 99th percentile",
        measured=f"median {1000 * statistics.median(found):.0f} ms, without them {1000 * statistics.median(alone):.0f}",
        ratio=1000 * times[98],
        bar=P99_MS,
        sense="at most",
        measure="ms",
        notes=(
            f"{name}: {_REQUESTS} requests, each on a connection of its own; the longest took "
            f"{1000 * max(found):.0f} ms; {halves.closed:,} halves were closed and replaced meanwhile; "
            f"soft limit of {_USUAL_FILES} open files at its start",
        ),
    )


def _times(url: str, token: str) -> list[float]:
    found = []
    headers = {"Authorization": f"Bearer {token}"}
    for _ in range(_REQUESTS):
        began = time.perf_counter()
        with urllib3.PoolManager() as http:
            answer = http.request("GET", url, headers=headers, retries=False, timeout=_TIMEOUT_S)
        if answer.status != 200:
            raise ClusterError(f"{url} answered {answer.status}: {answer.data[:300]!r}")
        found.append(time.perf_counter() - began)
    return found


class _Halves:
    """A constant number of connections with half a request."""

    def __init__(self, url: str, count: int) -> None:
        address = urllib3.util.parse_url(url)
        self._address = (address.host or "", address.port or 0)
        self._selector = selectors.DefaultSelector()
        self.closed = 0
        for _ in range(count):
            self._open()

    def _open(self) -> None:
        connection = socket.create_connection(self._address, timeout=_TIMEOUT_S)
        connection.sendall(_HALF)
        self._selector.register(connection, selectors.EVENT_READ)

    def keep(self, is_over: threading.Event) -> None:
        """Replace closed connections until `is_over`."""
        while not is_over.is_set():
            for key, _ in self._selector.select(0.1):
                ended = key.fileobj
                assert isinstance(ended, socket.socket)
                self._selector.unregister(ended)
                ended.close()
                self.closed += 1
                with contextlib.suppress(OSError):
                    self._open()

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextmanager
def _halves(url: str, count: int) -> Iterator[_Halves]:
    halves, is_over = _Halves(url, count), threading.Event()
    keeper = threading.Thread(target=halves.keep, args=(is_over,), daemon=True)
    keeper.start()
    try:
        yield halves
    finally:
        is_over.set()
        keeper.join()
        halves.close()


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(os.linesep.join((" ".join(figure.cells()), *figure.notes)))


if __name__ == "__main__":
    main()
