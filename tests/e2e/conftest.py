"""Fixtures: a shared cluster, and separate clusters for tests that damage theirs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebro.local import cluster
from tests.e2e.harness import DEADLINE_S, Lab

MakeLab = Callable[..., Lab]

_PODS = Path(__file__).with_name("pods_supervisor.py")


@pytest.fixture(scope="session")
def home(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a cluster with two workers."""
    folder = tmp_path_factory.mktemp("e2e") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CEREBRO_SERVER", raising=False)
        # On a busy machine a terminating worker needs more time to reach its next batch.
        patch.setenv("CEREBRO_GRACE_S", "60")
        cluster.start(folder, workers=2, tensorboard=False, timeout_s=DEADLINE_S)
    yield folder
    cluster.stop(folder)


@pytest.fixture(scope="session")
def names() -> Iterator[str]:
    """Generate unique experiment names."""
    return (f"e2e-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def prepared(home: Path, names: Iterator[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Preprocess an experiment on the shared cluster; several fits may use it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEREBRO_HOME", str(home))
        patch.delenv("CEREBRO_SERVER", raising=False)
        lab = Lab(home, tmp_path_factory.mktemp("prepared"), names)
        name = lab.prepared().name
        lab.end()
    return name


@pytest.fixture
def lab(home: Path, names: Iterator[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Use the shared cluster with a gate for this test."""
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    lab = Lab(home, tmp_path, names)
    lab.recovered()
    yield lab
    lab.end()


@pytest.fixture
def own_lab(
    processes: None, tmp_path: Path, names: Iterator[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeLab]:
    """Start a cluster for one test, with settings from the environment, and stop it afterwards."""
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    labs: list[Lab] = []

    def make(workers: int = 2, **environment: str) -> Lab:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        cluster.start(tmp_path / "home", workers=workers, tensorboard=False, timeout_s=DEADLINE_S)
        labs.append(Lab(tmp_path / "home", tmp_path, names))
        return labs[-1]

    yield make
    for lab in labs:
        lab.end()
    cluster.stop(tmp_path / "home")


@pytest.fixture
def pods(
    processes: None, tmp_path: Path, names: Iterator[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """Start a cluster with two pairs of workers."""
    home = tmp_path / "home"
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    cluster.start(home, workers=2, tensorboard=False, timeout_s=DEADLINE_S, supervisor=("-P", str(_PODS)))
    lab = Lab(home, tmp_path, names)
    yield lab
    lab.end()
    cluster.stop(home)
