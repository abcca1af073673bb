"""Cross-validation by partitions on a real cluster."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from cerebro import Parallelism
from cerebro.cli.experiments.status import state_lines
from cerebro.contract.events import TaskCommitted
from cerebro.state import TaskKey
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.e2e.test_replay import replay

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "metric": "loss",
    "mode": "min",
    "seed": 3,
    "progress": False,
    "parallelism": Parallelism(trials="never"),
}
GRID = {"lr": [0.003, 0.3], "batch_size": 5}


def test_two_folds_of_a_grid(lab: Lab, tmp_path: Path) -> None:
    """Each model trains on one fold and validates on the other one; patients stay together, classes are even."""
    table = tmp_path / "train.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x", "label", "patient"])
        writer.writerows([n, f"{0.1 + n * 0.37:.3f}", n // 3 % 2, f"p{n // 3}"] for n in range(60))
    experiment = lab.experiment({"train": str(table)})
    etl = experiment.run_etl(TinyETL(), stratify="label", group="patient", progress=False)
    assert etl.kept_rows["train"] == 60
    result = experiment.run_fit(TinyTraining(), GRID, epochs=2, folds=2, **SETTINGS)
    assert result.failures() == {}
    run = lab.check(experiment)
    assert set(run.fit_rows.values()) == {30}
    found = result.folds()
    assert sorted(found.index) == ["m00", "m01"]
    assert found["loss mean"].is_monotonic_increasing
    for name, row in found.iterrows():
        assert row["loss mean"] == pytest.approx((row["fold 1"] + row["fold 2"]) / 2)
        models = [run.models[f"{name}-f{number}"] for number in (1, 2)]
        assert [model.partitions for model in models] == [(1,), (0,)]
        epoch = int(row["best_epoch"])
        assert [model.validation.metrics[epoch]["loss"] for model in models] == [row["fold 1"], row["fold 2"]]
    board = result.leaderboard()
    assert list(board["model"]) == [f"{name}-f1" for name in found.index]
    assert list(board["loss mean"]) == list(found["loss mean"])
    assert result.best.id == f"{found.index[0]}-f1"


def test_folds_survive_a_killed_controller_and_worker(own_lab: MakeLab) -> None:
    """Three partitions in two folds: no validation is lost or done twice, and a replay gives the same bits."""
    lab = own_lab(workers=3)
    experiment = lab.prepared()
    name = experiment.name
    fit = lab.spawn(
        lambda: type(experiment).attach(name).run_fit(TinyTraining(), GRID, epochs=2, folds=2, **SETTINGS)
    )
    log = lab.log(experiment)
    log.until(
        lambda event: isinstance(event, TaskCommitted) and TaskKey.parse(event.task).kind == "valid",
        "a validation",
    )
    lab.kill("controller")
    lab.kill("worker-1")
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment)
    events = [event for event in log.read() if isinstance(event, TaskCommitted)]
    keys = [TaskKey.parse(event.task) for event in events]
    validated = [(key.model, key.epoch, key.partition) for key in keys if key.kind == "valid"]
    expected = {
        (model.id, epoch, partition)
        for model in run.models.values()
        for epoch in (1, 2)
        for partition in set(run.fit_rows) - set(model.partitions)
    }
    assert sorted(validated) == sorted(expected)
    assert any("FOLDS OF fit-1" in line for line in state_lines(log.state()))
    status, text = replay(name, "--model", "m01-f2")
    assert (status, "final state equal to the bit" in text) == (0, True), text
