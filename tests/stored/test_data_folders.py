"""Data folders of released versions open in this version: see `tests.stored.data_folder`."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.local import cluster
from cerebro.state.experiment import fold
from tests.e2e.harness import DEADLINE_S, Lab
from tests.stored.data_folder import CLUSTER_LOG, EVENTS, EXPECTED, HOME, LOG, NAME, results_of

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob(f"*/{EXPECTED}"))


@pytest.fixture(params=FOLDERS, ids=[folder.name for folder in FOLDERS])
def folder(request: pytest.FixtureRequest) -> Path:
    """The data folder of a released version."""
    return Path(request.param)


@pytest.fixture
def expected(folder: Path) -> dict[str, Any]:
    """The results as that version read them."""
    return dict(json.loads((folder / EXPECTED).read_text()))


@pytest.fixture
def lab(processes: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A cluster of this version on a copy of the data folder."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with tarfile.open(folder / HOME) as archive:
        # Before 3.11.4 Python has no filters and ignores this attribute.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(home)
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    cluster.start(home, workers=2, tensorboard=False, timeout_s=DEADLINE_S)
    lab = Lab(home, tmp_path, iter(()))
    yield lab
    lab.end()
    cluster.stop(home)


def test_a_released_version_has_a_data_folder() -> None:
    assert [folder.name for folder in FOLDERS] == ["0.3.0"]


def test_stored_logs_give_the_same_ranking(folder: Path, expected: dict[str, Any]) -> None:
    logs = json.loads((folder / EVENTS).read_text())
    events = LOG.validate_python(logs["experiment"])
    run = fold(NAME, events).runs["fit-1"]
    best = min((row for row in expected["grid"] if row[1] == "finished"), key=lambda row: row[2])
    found = run.best_model()
    assert found is not None
    assert found.id == best[0]
    assert sorted(run.models) == sorted(row[0] for row in expected["grid"])
    CLUSTER_LOG.validate_python(logs["cluster"])


@pytest.mark.slow
@pytest.mark.processes
def test_a_stored_data_folder_opens_and_trains_on(lab: Lab, expected: dict[str, Any]) -> None:
    """Results are equal, and a model of the stored run trains further."""
    experiment = Experiment.attach(NAME)
    python = tuple(expected.pop("python"))
    if python != sys.version_info[:2]:  # encoded user code depends on Python's version
        pytest.skip(f"the folder's user code was encoded by Python {python[0]}.{python[1]}")
    assert results_of(experiment) == expected
    experiment.extend_model("m00", epochs=3, run="fit-1")
    experiment.watch("fit-1", progress=False)
    board = experiment.result("fit-1").leaderboard().set_index("model")
    assert (board.loc["m00", "state"], board.loc["m00", "epochs"]) == ("finished", 3)
