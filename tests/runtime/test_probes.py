"""A process that waits for its store is live but not ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import urllib3

from tests.servers import first_answer, reserved_port
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = HANG_S

Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``python -m MODULE ARGUMENTS`` and return the address of its health server."""
    started: list[subprocess.Popen[bytes]] = []
    ports = ExitStack()

    def run(*module: str) -> tuple[subprocess.Popen[bytes], str]:
        bind = f"127.0.0.1:{ports.enter_context(reserved_port())}"
        store = f"http://127.0.0.1:{ports.enter_context(reserved_port())}"
        environment = {
            **os.environ,
            "CEREBRO_SERVER": store,
            "CEREBRO_TOKEN": "token",
            "CEREBRO_WORKER": "worker-0",
            "CEREBRO_VOLUMES": str(tmp_path),
            "CEREBRO_HEALTH_BIND": bind,
        }
        process = subprocess.Popen([sys.executable, "-m", *module], cwd=ROOT, env=environment)
        started.append(process)
        first_answer(f"http://{bind}/live", process)
        return process, f"http://{bind}"

    yield run
    for process in started:
        process.kill()
        process.wait()
    ports.close()


def probe(url: str) -> tuple[int, str]:
    with urllib3.PoolManager() as http:
        answer = http.request("GET", url, retries=False, timeout=LIMIT_S)
        return answer.status, answer.data.decode()


def test_a_worker_is_ready_once_it_has_registered(start: Start) -> None:
    """Before that it is live, and SIGTERM ends it at once because it holds no tasks."""
    process, address = start("cerebro.worker.agent", "--handlers", "tests.worker.agent.fake_handler")
    assert probe(f"{address}/health") == (503, "worker-0 has not registered yet\n")
    assert probe(f"{address}/live") == (200, "ok\n")
    assert "cerebro_worker_idle_seconds_total" in probe(f"{address}/metrics")[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def test_a_controller_is_live_without_a_store(start: Start) -> None:
    """A restart would not bring the store back."""
    _, address = start("controller")
    assert probe(f"{address}/health") == probe(f"{address}/live") == (200, "ok\n")
    assert "cerebro_controller_leading 0.0" in probe(f"{address}/metrics")[1]
