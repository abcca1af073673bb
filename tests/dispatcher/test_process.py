"""The dispatcher process starts from its environment, stays small and ends promptly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest.api import MAX_WAIT_S
from cerebro.runtime.kvs.client import KvsClient
from tests.dispatcher.fakes import TOKEN
from tests.forking import Forked, Forks
from tests.kvs_api.bench import LOCATORS, requested
from tests.kvs_api.real import TOKEN as STORE_TOKEN
from tests.kvs_api.real import Service
from tests.servers import first_answer, reserved_port
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes

_STARTS_S = HANG_S


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@contextmanager
def dispatcher(port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the dispatcher without a reachable store."""
    command = [sys.executable, "-m", "dispatcher"]
    with subprocess.Popen(command, env=_environment(port) | environment) as process:
        try:
            yield process
        finally:
            process.kill()


def _environment(port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CEREBRO_BIND": f"127.0.0.1:{port}",
        "CEREBRO_SERVER": "http://127.0.0.1:9",
        "CEREBRO_TOKEN": TOKEN,
    }


@pytest.fixture(scope="module")
def forks(processes: None) -> Iterator[Forks]:
    """A preloaded dispatcher, for tests that do not need a fresh interpreter."""
    with Forks("dispatcher.__main__") as forks:
        yield forks


@contextmanager
def forked(forks: Forks, port: int, said: Path, **environment: str) -> Iterator[Forked]:
    """As `dispatcher`; its stderr goes to the file `said`."""
    with said.open("wb") as stderr:
        process = forks.start([], environment=_environment(port) | environment, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_process_is_healthy_without_a_store_and_ends_on_sigterm(port: int) -> None:
    """It also renders a page."""
    with dispatcher(port) as process:
        answer = first_answer(f"http://127.0.0.1:{port}/health", process)
        assert (answer.status, json.loads(answer.data)) == (200, {"status": "ok", "api": "/api"})
        with urllib3.PoolManager(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            assert http.request("GET", f"http://127.0.0.1:{port}/start", timeout=_STARTS_S).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=HANG_S) == 0


def test_a_blocked_read_is_answered_before_the_process_ends(
    service: Service, forks: Forks, tmp_path: Path, port: int
) -> None:
    """A client waits for events when the dispatcher gets SIGTERM; it gets the event and no error."""
    service.client().create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    store = {"CEREBRO_SERVER": service.address, "CEREBRO_TOKEN": STORE_TOKEN}
    with forked(forks, port, tmp_path / "said", **store) as process:
        first_answer(f"http://127.0.0.1:{port}/health", process)
        client = KvsClient(f"http://127.0.0.1:{port}/api", STORE_TOKEN, retry_for_s=0.0)
        with ThreadPoolExecutor() as pool:
            blocked = pool.submit(lambda: client.events("one", wait_s=MAX_WAIT_S))
            # The answer shows that the dispatcher has accepted the first request.
            assert KvsClient(f"http://127.0.0.1:{port}/api", STORE_TOKEN).queue() == ()
            process.send_signal(signal.SIGTERM)
            service.client().append("one", requested("etl-1"))
            assert [event.type for event in blocked.result(_STARTS_S)] == ["RunRequested"]
        assert process.wait(_STARTS_S) == 0


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({"CEREBRO_TOKEN": ""}, "CEREBRO_TOKEN is not set"),
        ({"CEREBRO_BIND": "nonsense"}, "expected host:port"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_sentence(
    environment: dict[str, str], match: str, forks: Forks, tmp_path: Path, port: int
) -> None:
    """A configuration error has no traceback."""
    said = tmp_path / "said"
    with forked(forks, port, said, **environment) as process:
        assert process.wait(_STARTS_S) == 1
    assert match in said.read_text()
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
def test_heavy_libraries_are_not_imported() -> None:
    """Neither torch, pandas, pyarrow and numpy nor database clients."""
    heavy = "{'torch', 'pandas', 'pyarrow', 'numpy', 'redis', 'boto3'}"
    code = f"import sys, dispatcher.__main__; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
