"""The supervisor detects hung services by missed probes, with a fake clock and real sockets."""

from __future__ import annotations

import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.local.home import ClusterHome
from cerebro.local.supervision import liveness, processes, readiness
from cerebro.local.supervision.liveness import EVERY_S, MAX_MISSED_PROBES, Watch
from cerebro.local.supervision.processes import ProcessId
from cerebro.local.supervision.service_process import START_S, ServiceProcess
from cerebro.local.supervision.services import Service
from tests.waiting import HANG_S

GOOD, BAD = b"HTTP/1.0 200 OK\r\n\r\nok\n", b"HTTP/1.0 503 Service Unavailable\r\n\r\nthe loop stands still\n"


class Process:
    """A service that answers probes only on request, with a fake clock."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(HANG_S)
        self.watch = Watch(liveness.http(int(self._listener.getsockname()[1])))
        self.now = 1000.0

    def check(self, later_s: float = EVERY_S) -> bool:
        """Advance the clock and return True if the service is hung."""
        self.now += later_s
        return self.watch.check(self.now)

    def answer(self, content: bytes) -> None:
        """Answer the oldest pending probe."""
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(1 << 12)
            connection.sendall(content)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self.watch.close()


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


def test_a_process_that_answers_probes_stays_alive(process: Process) -> None:
    assert not process.check()
    for _ in range(5 * MAX_MISSED_PROBES):
        process.answer(GOOD)
        assert not process.check()


def test_several_missed_probes_in_a_row_count_as_a_hang(process: Process) -> None:
    """A late answer in between resets the count."""
    process.check()
    assert [process.check() for _ in range(MAX_MISSED_PROBES - 1)] == [False] * (MAX_MISSED_PROBES - 1)
    process.answer(GOOD)
    assert [process.check() for _ in range(MAX_MISSED_PROBES + 2)] == [False] * MAX_MISSED_PROBES + [
        True,
        True,
    ]


def test_a_process_suspended_with_the_supervisor_gets_its_full_time(process: Process) -> None:
    """After a laptop sleeps, neither the sleep nor earlier missed probes count."""
    process.check()
    for _ in range(3):
        assert [process.check() for _ in range(MAX_MISSED_PROBES - 1)] == [False] * (MAX_MISSED_PROBES - 1)
        assert not process.check(3600.0)
    process.answer(GOOD)  # answers an old probe, which no longer counts
    assert [process.check() for _ in range(MAX_MISSED_PROBES)] == [False] * (MAX_MISSED_PROBES - 1) + [True]


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


Make = Callable[..., tuple[ServiceProcess, ProcessId]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Start services that answer on their own ports, at time 0 of the fake clock."""
    home = ClusterHome(tmp_path)
    home.create()
    started: list[ServiceProcess] = []

    def start(*, is_ever_ready: bool) -> tuple[ServiceProcess, ProcessId]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        service = Service(
            name="one",
            command=(sys.executable, "-I", "-c", SERVER, str(port)),
            environment={},
            stage=0,
            ready=readiness.http(port, "/live") if is_ever_ready else lambda: False,
            live=liveness.http(port),
        )
        started.append(ServiceProcess(service, log=home.log("one"), folder=tmp_path))
        started[-1].start(0.0)
        process = started[-1].info().process
        assert process is not None
        while not readiness.http(port, "/live")():
            assert not processes.wait_gone(process, 0.02)
        return started[-1], process

    yield start
    for child in started:
        child.kill()


@pytest.mark.processes
def test_a_stopped_process_is_killed_and_restarted(make: Make) -> None:
    """The log gives the reason."""
    child, process = make(is_ever_ready=True)
    now = EVERY_S
    child.act(now)
    assert child.info().state == "ready"
    assert processes.send(process, signal.SIGSTOP)
    for _ in range(MAX_MISSED_PROBES + 2):
        now += EVERY_S
        child.act(now)
    assert processes.wait_gone(process, HANG_S)
    assert child.reap(now)
    assert child.info().state == "restarting"
    assert child.problem == f"did not answer for {EVERY_S * MAX_MISSED_PROBES:g} s and was ended by SIGKILL"


def _question(child: ServiceProcess) -> socket.socket:
    """Return the connection of the pending probe."""
    assert child._watch is not None
    assert child._watch._connection is not None
    return child._watch._connection


@pytest.mark.processes
def test_an_unready_service_may_wait_but_not_hang(make: Make) -> None:
    """A service that waits for another one still answers liveness probes."""
    child, process = make(is_ever_ready=False)
    now = START_S
    for _ in range(MAX_MISSED_PROBES + 2):
        now += EVERY_S
        child.act(now)
        assert select.select([_question(child)], [], [], 10.0)[0]
    assert processes.send(process, signal.SIGSTOP)
    for _ in range(MAX_MISSED_PROBES + 2):
        now += EVERY_S
        child.act(now)
    assert processes.wait_gone(process, HANG_S)
    assert child.reap(now)
    assert "did not answer for" in child.problem
