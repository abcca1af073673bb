"""A client outside the cluster: it has the dispatcher's address and a token, but no volumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cerebro import Experiment
from cerebro.errors import LocatorError, UnauthorizedError
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow

SPACE = [{"tag": tag, "lr": 0.05, "batch_size": 5} for tag in "ab"]


@pytest.fixture
def elsewhere(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the dispatcher's address, seen from a machine without volumes."""
    monkeypatch.setenv("CEREBRO_VOLUMES", str(tmp_path / "nothing-mounted"))
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "no-cluster"))
    return lab.info().dispatcher


def test_an_experiment_works_the_same_outside_the_cluster(lab: Lab, elsewhere: str, tmp_path: Path) -> None:
    """ETL, training, the best weights and predictions give the same results as inside the cluster."""
    token = lab.info().token()
    tables = lab.tables(train=40, valid=12, predict=9)
    with pytest.warns(UserWarning, match=r"train\.csv \(and 2 more\) exists on this machine; make sure"):
        experiment = Experiment("outside", locators=tables, server=elsewhere, token=token)
    assert experiment.connection.page == elsewhere
    assert experiment.run_etl(TinyETL(), progress=False).kept_rows == {"train": 40, "valid": 12, "predict": 9}
    result = experiment.run_fit(
        TinyTraining(), SPACE, epochs=2, metric="loss", mode="min", seed=3, progress=False
    )
    assert result.failures() == {}
    best = result.best
    assert best.path.is_relative_to(tmp_path / "cache")
    inside = lab.volumes.checkpoint(best.checkpoint.name)
    assert best.path.read_bytes() == inside.read_bytes()
    state = best.load()
    assert all(isinstance(tensor, torch.Tensor) for tensor in state["models"][0].values())
    outside = experiment.run_predict(progress=False)
    assert (list(outside.index), list(outside.columns)) == (list(range(9)), ["label"])
    assert experiment.run_test(split="valid", progress=False).loc[best.id, "rows"] == 12
    assert "outside" in experiment.status()
    assert not (tmp_path / "nothing-mounted").exists()
    again = Experiment.attach("outside", server=elsewhere, token=token)
    assert again.result().best.value == best.value


def test_mistakes_are_reported_before_any_task_runs(lab: Lab, elsewhere: str) -> None:
    """A wrong token, and a table that exists only on this machine."""
    with pytest.raises(UnauthorizedError):
        Experiment("outside-2", locators={"train": "s3://bucket/train.csv"}, server=elsewhere, token="wrong")
    with pytest.raises(
        LocatorError, match=r"data/train\.csv is a path of this machine, but http.* is elsewhere"
    ):
        Experiment(
            "outside-2", locators={"train": "data/train.csv"}, server=elsewhere, token=lab.info().token()
        )
