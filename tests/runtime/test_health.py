"""Health probes: a process's answers and the probe command's exit status."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import urllib3

from cerebro.errors import ClusterError
from cerebro.runtime.web import health
from controller.__main__ import HUNG_S, hung
from tests.waiting import HANG_S


class Served:
    """A health server whose checks the test can change."""

    def __init__(self) -> None:
        self.unready, self.unwell = "", ""
        self._server = health.serve(
            "127.0.0.1:0",
            ready=lambda: self.unready,
            live=lambda: self.unwell,
            metrics=lambda: b"answers 42\n",
        )
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        with urllib3.PoolManager() as http:
            answer = http.request("GET", self.address + path)
            return answer.status, answer.data.decode()

    def half(self) -> socket.socket:
        """Open a connection and send half a request."""
        connection = socket.create_connection(("127.0.0.1", self._server.server_port), timeout=HANG_S)
        connection.sendall(b"GET /live HTTP/1.1\r\nHost:")
        return connection

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def test_readiness_and_liveness_have_separate_answers(served: Served) -> None:
    """Each answers 200, or 503 with one line; other paths answer 404."""
    assert served.get("/health") == served.get("/live") == (200, "ok\n")
    served.unready = "not registered yet\nwith more to say"
    assert served.get("/health") == (503, "not registered yet\n")
    assert served.get("/live?x=1") == (200, "ok\n")
    assert served.get("/")[0] == 404


def test_partial_requests_do_not_delay_probes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest excess connection is closed, and each one after its deadline, even if bytes trickle in."""
    monkeypatch.setattr(health, "_MAX_REQUESTS", 4)
    with ExitStack() as stack:
        halves = [stack.enter_context(served.half()) for _ in range(6)]
        assert served.get("/live") == (200, "ok\n")
        assert halves[0].recv(1) == b""
        monkeypatch.setattr(health, "_LONGEST_REQUEST_S", 0.05)
        halves[-1].sendall(b"x")
        assert halves[-1].recv(1) == b""


@pytest.mark.parametrize("bind", ["nonsense", "127.0.0.1:", "127.0.0.1:99999", "203.0.113.1:80"])
def test_a_wrong_address_is_reported_in_one_sentence(bind: str) -> None:
    """The error names the variable and the expected format."""
    with pytest.raises(ClusterError, match=r"CEREBRO_HEALTH_BIND is .*expected a free host:port"):
        health.serve(bind, ready=str, live=str)


@pytest.mark.commands
def test_the_command_ends_with_0_or_1(served: Served) -> None:
    """The command imports almost nothing, so it is fast enough for a container's health command."""
    command = [sys.executable, "-m", "cerebro.runtime.web.health", f"{served.address}/health"]
    assert subprocess.run(command, check=False).returncode == 0
    served.unready = "busy dying"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "busy dying" in done.stderr) == (1, True)
    assert health.main([], {}) == 1
    heavy = "{'pydantic', 'urllib3', 'flask', 'numpy'}"
    code = f"import sys, cerebro.runtime.web.health; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_controller_is_live_while_its_loop_runs() -> None:
    """A standby controller and one without a store are live; only a loop stalled for minutes is not."""
    assert hung(1000.0, 1000.0 + HUNG_S) == ""
    assert hung(1000.0, 1001.0 + HUNG_S) == f"the loop has not turned for {HUNG_S + 1:.0f} s"
