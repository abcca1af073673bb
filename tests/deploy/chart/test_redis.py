"""Redis with the chart's configuration on a real server: durability, password and probe."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from cerebro.local.database import find_server
from tests.deploy.chart.rendering import Object, render
from tests.servers import reserved_port
from tests.waiting import HANG_S, until

PASSWORD = "p-_" + "x" * 40


@pytest.fixture(scope="module")
def container() -> Object:
    """Return Redis' rendered container."""
    (one,) = render("defaults").pod("redis")["spec"]["containers"]
    return dict(one)


@pytest.fixture
def port() -> Iterator[int]:
    """Reserve a free port."""
    with reserved_port() as reserved:
        yield reserved


@contextmanager
def _running(container: Object, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server with the container's arguments, except for folder and port."""
    arguments = [
        text.replace("$(REDIS_PASSWORD)", PASSWORD)
        .replace("--dir /data", f"--dir {folder}")
        .replace("6379", str(port))
        for text in container["args"]
    ]
    server = find_server()
    assert server is not None
    process = subprocess.Popen([str(server), *arguments], stdout=subprocess.DEVNULL)
    try:
        until(lambda: _ping(container, port)[0] == 0, "Redis serves")
        yield process
    finally:
        process.kill()
        process.wait()


def _ping(container: Object, port: int, password: str = PASSWORD) -> tuple[int, str]:
    """Run the startup probe; return status and output."""
    command = container["startupProbe"]["exec"]["command"]
    assert command[0] == "python"
    environment = {**os.environ, "REDIS_PASSWORD": password, "REDIS_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, *command[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_the_probe_reports_whether_redis_works(container: Object, tmp_path: Path, port: int) -> None:
    """Zero while the server works; otherwise, or with a wrong password, it fails and prints the reply."""
    assert _ping(container, port)[0] != 0
    with _running(container, tmp_path, port):
        assert _ping(container, port) == (0, "")
        status, said = _ping(container, port, password="wrong")
        assert status != 0
        assert "WRONGPASS" in said


@pytest.mark.slow
@pytest.mark.processes
def test_requests_without_the_password_are_refused(container: Object, tmp_path: Path, port: int) -> None:
    """For reads and writes."""
    with (
        _running(container, tmp_path, port),
        redis.Redis(port=port) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.get("key")


def test_an_acknowledged_write_survives_a_kill(container: Object, tmp_path: Path, port: int) -> None:
    """SIGKILL right after the reply, and a restart on the same volume: the record exists."""
    with _running(container, tmp_path, port) as process, redis.Redis(port=port, password=PASSWORD) as client:
        client.set("key", "value")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with _running(container, tmp_path, port), redis.Redis(port=port, password=PASSWORD) as client:
        assert client.get("key") == b"value"
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


def test_a_volume_that_cannot_be_written_is_reported(container: Object, tmp_path: Path) -> None:
    """The pod's status has the message with the `chown` command."""
    shell, option, script, name = container["command"]
    absent = tmp_path / "roots"
    done = subprocess.run(
        [shell, option, script.replace("/data", str(absent)), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot write to its volume {absent}: give the volume to that user (chown -R" in done.stderr
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
