"""Real trackers from their packages, in the environment of `make trackers`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import first_answer, reserved_port

_BIN = Path(sys.prefix) / "trackers" / "bin"


def program(name: str) -> Path:
    """Return a program of that environment; skip the test without it, except in CI."""
    path = _BIN / name
    if not path.exists():
        assert not os.environ.get("CI"), f"{path} is missing: make trackers"
        pytest.skip(f"{name} is not installed: make trackers")
    return path


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Start a real MLflow tracking server with a database and artifact storage; yield its address."""
    log = folder / "mlflow.log"
    with reserved_port() as port, log.open("wb") as output:
        command = [
            str(program("mlflow")), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
            "--artifacts-destination", str(folder / "files"),
        ]  # fmt: skip
        address = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            first_answer(f"{address}/health", process, log)
            yield address
        finally:
            os.killpg(process.pid, 9)
            process.wait()
