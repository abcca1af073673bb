"""Exports into a real MLflow tracking server, started from its package."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exports.logged import long_log, record, write_log
from tests.exports.reading import Shown
from tests.exports.registry_contract import RegistryContract, aliases, versions
from tests.exports.trackers import mlflow_server
from tests.exports.tracking_contract import TrackingContract, check_rows

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ROOT = Path(__file__).resolve().parents[2]
KILLS = 3
"""Kills per test; `test_mlflow.py` and `test_registry_export.py` kill at each request of a fake server."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with mlflow_server(folder) as there:
        yield there


class TestRealServer(TrackingContract):
    """The shared tests with the real server."""

    @pytest.fixture(autouse=True)
    def remember(self, folder: Path) -> None:
        self.folder = folder

    def file(self, address: str, run: Shown, name: str) -> bytes:
        of = Path(run.info["experiment_id"], run.info["run_id"], "artifacts")
        return (self.folder / "files" / of / name).read_bytes()


class TestRealRegistry(RegistryContract):
    """The shared tests of pushes."""

    @pytest.fixture(autouse=True)
    def remember(self, folder: Path) -> None:
        self.folder = folder

    def artifact(self, source: str) -> bytes:
        return (self.folder / "files" / source.removeprefix("mlflow-artifacts:/") / "model.pt").read_bytes()


def test_a_repeatedly_killed_push_leaves_each_version_once(address: str, tmp_path: Path) -> None:
    """Processes are killed by kill -9 at random requests, and a final push completes."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    chance, name = random.Random(2), "killed-registry"
    command = [sys.executable, "-m", "tests.exports.pushing", name, address, str(tmp_path / "model.pt")]
    for _ in range(KILLS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(chance.randint(1, 12))
            process.kill()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert sorted(versions(address, name)) == [f"{name}/{number}" for number in (1, 2, 3)]
    assert aliases(address, name) == {"champion": f"{name}/3", "old": f"{name}/1"}


def test_a_repeatedly_killed_export_leaves_each_row_once(address: str, tmp_path: Path) -> None:
    """Processes are killed by kill -9 at random requests, and a final export completes."""
    log, of, chance = long_log(), record("killed"), random.Random(1)
    write_log(tmp_path / "log", log)
    command = [sys.executable, "-m", "tests.exports.exporting", str(tmp_path / "log"), of.name, address]
    for _ in range(KILLS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            requests = chance.randint(3, 12)
            assert len(process.stdout.read(requests)) == requests, "it ended before it could be killed"
            process.kill()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    check_rows(address, of, log)
