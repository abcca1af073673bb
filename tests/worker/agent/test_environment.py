"""Workers on one volume install an environment for user code once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.errors import RequirementsError, StorageFullError
from cerebro.runtime.volumes import Volumes
from cerebro.worker.agent import environment
from tests.small_volume import small_volume


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


@pytest.mark.processes
def test_a_full_volume_is_no_error_of_the_requirements(tmp_path: Path) -> None:
    """pip states the error only in its output; the run pauses and resumes by itself."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "large.py").write_text("#" * (4 << 20))
    (package / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='large', py_modules=['large'])\n"
    )
    folder = _archive(tmp_path, f"{package}\n")
    with small_volume(tmp_path / "volumes", "2m") as root:
        volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(root)})
        with pytest.raises(RequirementsError, match="no-such"):
            environment.python_for(_archive(tmp_path, "./no-such-folder\n"), volumes)
        with pytest.raises(StorageFullError, match=r"No space left[\s\S]* pip said") as raised:
            environment.python_for(folder, volumes)
        assert Path(raised.value.path).is_relative_to(root)
