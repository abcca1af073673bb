"""The on-demand starter launches a server at its first connection."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cerebro.runtime.web.on_demand import OnDemandServer
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
_SERVER = """\
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/exit/"):
            os._exit(int(self.path.removeprefix("/exit/")))
        self.answer(b"server: " + self.path.encode())

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class OnDemand:
    """The starter in front of a small server."""

    def __init__(self, *command: str) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]
        program = [
            sys.executable,
            "-P",
            "-m",
            "cerebro.runtime.web.on_demand",
            f"--bind={HOST}:{self.port}",
            "--",
        ]
        self.process = subprocess.Popen(
            [*program, *command], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
        )
        until(self._is_listening, "it listens")

    def _is_listening(self) -> bool:
        assert self.process.poll() is None
        try:
            socket.create_connection((HOST, self.port)).close()  # like a TCP probe
        except OSError:
            return False
        return True

    def ask(self, path: str = "/", body: bytes | None = None, agent: str = "Mozilla/5.0") -> bytes:
        """Send a request on a new connection; return the response body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=HANG_S)
        try:
            connection.request("GET" if body is None else "POST", path, body, {"User-Agent": agent})
            return connection.getresponse().read()
        finally:
            connection.close()

    def servers(self) -> list[psutil.Process]:
        """Return the server processes that the starter launched."""
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def on_demand() -> Iterator[OnDemand]:
    server = OnDemand(sys.executable, "-c", _SERVER, "{port}")
    yield server
    server.process.kill()
    server.process.communicate()


def test_a_probe_is_answered_without_the_server(on_demand: OnDemand) -> None:
    """Any path and kubelet version; an idle connection starts no server either."""
    for path in ("/api", "/data/environment"):
        assert on_demand.ask(path, agent="kube-probe/1.36") == b"idle\n"
    assert on_demand.servers() == []


def test_the_first_request_starts_the_server_and_gets_its_answer(on_demand: OnDemand) -> None:
    """Later requests and probes reach the same server."""
    body = b"x" * 3_000_000
    assert on_demand.ask("/upload", body) == body
    (server,) = on_demand.servers()
    assert on_demand.ask("/api", agent="kube-probe/1.36") == b"server: /api"
    assert on_demand.ask("/lab?token=a") == b"server: /lab?token=a"
    assert on_demand.servers() == [server]


@pytest.mark.parametrize("status", [0, 3])
def test_the_proxy_exits_with_the_status_of_the_server(on_demand: OnDemand, status: int) -> None:
    """The kubelet reports the status and restarts the container."""
    with pytest.raises((http.client.HTTPException, OSError)):
        on_demand.ask(f"/exit/{status}")
    assert on_demand.process.wait(HANG_S) == status


def test_the_proxy_ends_by_the_signal_that_killed_the_server(on_demand: OnDemand) -> None:
    """The exit status is 137, which Kubernetes reports for an out-of-memory kill."""
    on_demand.ask()
    on_demand.servers()[0].kill()
    assert on_demand.process.wait(HANG_S) == 128 + signal.SIGKILL


def test_a_server_that_never_listens_is_ended() -> None:
    """After `start_s`; probes succeed until then."""

    async def ask(bound: socket.socket) -> int:
        running = asyncio.create_task(OnDemandServer(["sleep", "infinity"], start_s=0.01).run(bound))
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        return await running

    before = psutil.Process().children()
    assert asyncio.run(ask(socket.create_server((HOST, 0)))) == 1
    assert psutil.Process().children() == before


@pytest.mark.parametrize("is_started", [False, True])
def test_sigterm_ends_the_proxy_and_the_server(on_demand: OnDemand, is_started: bool) -> None:
    """An open connection does not delay the end."""
    if is_started:
        on_demand.ask()
    servers = on_demand.servers()
    assert bool(servers) == is_started
    with socket.create_connection((HOST, on_demand.port)) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n")
        on_demand.process.terminate()
        said = on_demand.process.communicate(timeout=HANG_S)[1]
    assert on_demand.process.returncode == 0
    assert b"Traceback" not in said
    assert psutil.wait_procs(servers, timeout=HANG_S)[1] == []
