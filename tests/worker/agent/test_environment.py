"""Workers on one volume install an environment for user code once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes
from cerebro.worker.agent import environment


@pytest.fixture
def workers(tmp_path: Path) -> list[Volumes]:
    """Volumes of three workers on one machine."""
    common = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    return [replace(common, shards=tmp_path / f"shards/worker-{n}") for n in range(3)]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Targets of all installations; each creates an interpreter."""
    targets: list[Path] = []

    def install(requirements: Path, target: Path) -> None:
        assert not target.exists(), "nothing of an earlier installation is left"
        targets.append(target)
        (target / "bin").mkdir(parents=True)
        (target / "bin" / "python").touch()

    monkeypatch.setattr(environment, "_install", install)
    return targets


def _archive(tmp_path: Path, text: str) -> str:
    folder = tmp_path / f"code-{len(text)}"
    folder.mkdir()
    (folder / "requirements.txt").write_text(text)
    return str(folder)


def test_workers_of_a_machine_install_once(
    workers: list[Volumes], installed: list[Path], tmp_path: Path
) -> None:
    """Workers that start together wait for the first one's environment."""
    folder, found = _archive(tmp_path, "scikit-learn"), list[str]()
    threads = [
        threading.Thread(target=lambda v=volumes: found.append(environment.python_for(folder, v)))
        for volumes in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(installed) == 1
    assert found == [str(installed[0] / "bin" / "python")] * 3


def test_an_incomplete_environment_is_installed_again(
    workers: list[Volumes], installed: list[Path], tmp_path: Path
) -> None:
    folder = _archive(tmp_path, "scikit-learn")
    python = Path(environment.python_for(folder, workers[0]))
    (python.parents[1] / "complete").unlink()
    assert environment.python_for(folder, workers[1]) == str(python)
    assert len(installed) == 2
