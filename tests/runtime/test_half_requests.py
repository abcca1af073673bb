"""Services answer while more incomplete requests are open than their file limit allows."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import urllib3

from tests.kvs_api.real import ROOT, TOKEN, Database
from tests.runtime.test_serving import BODY, HALF, LIMIT_S
from tests.servers import first_answer, reserved_port

OPEN_FILES = 1024
"""The usual limit, set as the hard limit too so that the service cannot raise it."""


@contextmanager
def running(module: str, **environment: str) -> Iterator[str]:
    """Start a service process with the usual file limit and yield its address."""
    limited = ["bash", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "-", sys.executable, "-m", module]
    with reserved_port() as port:
        bind = f"127.0.0.1:{port}"
        variables = {**os.environ, "CEREBRO_BIND": bind, "CEREBRO_TOKEN": TOKEN, **environment}
        process = subprocess.Popen(limited, cwd=ROOT, env=variables, stderr=subprocess.DEVNULL)
        try:
            first_answer(f"http://{bind}/live", process)
            yield bind
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise this process's file limit for the tests' connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4096:
        pytest.skip(f"this machine allows {before[1]} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("content", [HALF, BODY + b"x"], ids=["headers", "body"])
def test_kvs_api_answers_despite_1100_partial_requests(tmp_path: Path, content: bytes) -> None:
    with Database(tmp_path) as database, running("kvs_api", CEREBRO_REDIS_URL=database.url) as bind:
        _answers_beside(f"http://{bind}/v1/queue", content, 1100, {"Authorization": f"Bearer {TOKEN}"})


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("count", [150, 1100])
def test_the_dispatcher_answers_despite_partial_requests(count: int) -> None:
    """Requests a page that does not need the store."""
    with running("dispatcher", CEREBRO_SERVER="http://127.0.0.1:9") as bind:
        _answers_beside(f"http://{bind}/sign-in", HALF, count, {})


def _answers_beside(url: str, content: bytes, count: int, headers: dict[str, str]) -> None:
    """Check that requests are answered while `count` connections have sent only `content`."""
    address = urllib3.util.parse_url(url)
    assert address.host
    assert address.port
    with ExitStack() as stack:
        for _ in range(count):
            half = stack.enter_context(
                socket.create_connection((address.host, address.port), timeout=LIMIT_S)
            )
            half.sendall(content)
        for _ in range(20):
            with urllib3.PoolManager() as http:  # a new connection per request
                answer = http.request("GET", url, headers=headers, retries=False, timeout=LIMIT_S)
            assert answer.status == 200
