"""Who hangs and who does not, by a clock of the test's own, over real sockets; then with a real process."""

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
    """What listens and answers only when the test says so, as one that is stopped does; and a clock."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(HANG_S)
        self.watch = Watch(liveness.http(int(self._listener.getsockname()[1])))
        self.now = 1000.0

    def check(self, later_s: float = EVERY_S) -> bool:
        """Whether it is hung so much later."""
        self.now += later_s
        return self.watch.check(self.now)

    def answer(self, content: bytes) -> None:
        """Answer the oldest question that is open."""
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(1 << 12)
            connection.sendall(content)

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()
        self.watch.close()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.close()


def test_one_that_answers_lives_for_ever(process: Process) -> None:
    """Each question is answered by the next look."""
    assert not process.check()
    for _ in range(5 * MAX_MISSED_PROBES):
        process.answer(GOOD)
        assert not process.check()


def test_silence_at_several_looks_in_a_row_is_a_hang(process: Process) -> None:
    """Not earlier, and each further look says so too; an answer in between, however late, begins anew."""
    process.check()
    assert [process.check() for _ in range(MAX_MISSED_PROBES - 1)] == [False] * (MAX_MISSED_PROBES - 1)
    process.answer(GOOD)
    assert [process.check() for _ in range(MAX_MISSED_PROBES + 2)] == [False] * MAX_MISSED_PROBES + [
        True,
        True,
    ]


def test_who_was_suspended_with_the_supervisor_gets_all_its_time_again(process: Process) -> None:
    """A laptop that slept for an hour: the silence of that hour counts for nothing, nor what was before it."""
    process.check()
    for _ in range(3):
        assert [process.check() for _ in range(MAX_MISSED_PROBES - 1)] == [False] * (MAX_MISSED_PROBES - 1)
        assert not process.check(3600.0)
    process.answer(GOOD)  # to a question of before, which nobody waits for
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
    """A service that answers on a port of its own, and has just been started, at 0 of the test's clock."""
    home = ClusterHome(tmp_path)
    home.create()
    made: list[ServiceProcess] = []

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
        made.append(ServiceProcess(service, log=home.log("one"), folder=tmp_path))
        made[-1].start(0.0)
        process = made[-1].info().process
        assert process is not None
        while not readiness.http(port, "/live")():
            assert not processes.wait_gone(process, 0.02)
        return made[-1], process

    yield start
    for child in made:
        child.kill()


@pytest.mark.processes
def test_a_process_that_is_stopped_is_killed_and_started_anew(make: Make) -> None:
    """It says why it was replaced."""
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
    """The connection on which the answer comes."""
    assert child._watch is not None
    assert child._watch._connection is not None
    return child._watch._connection


@pytest.mark.processes
def test_one_that_is_not_ready_for_long_may_wait_but_not_hang(make: Make) -> None:
    """Who waits for another service answers meanwhile that it lives."""
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
