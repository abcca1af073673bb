"""Other people's trackers from their packages, in an environment of their own: `make trackers` makes it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BIN = Path(sys.prefix) / "trackers" / "bin"
_START_S = 120.0


def program(name: str) -> Path:
    """One of that environment's programs; without it the test is skipped, but in CI."""
    path = _BIN / name
    if not path.exists():
        assert not os.environ.get("CI"), f"{path} is missing: make trackers"
        pytest.skip(f"{name} is not installed: make trackers")
    return path


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Address of a real MLflow tracking server with a database, which takes files."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(program("mlflow")), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder / "files"),
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    log = folder / "mlflow.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        _await(process, f"{address}/health", log)
        yield address
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(int(_START_S / 0.2)):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError(f"{url} does not answer: {log.read_text()}")
