"""Fits with several objectives and constraints on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro import ASHA, TPE, Parallelism, loguniform, randint
from cerebro.contract.runs import Mode
from cerebro.errors import MetricError
from cerebro.search.pareto import dominates
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import WideTraining

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"seed": 3, "progress": False, "parallelism": Parallelism(trials="never")}
OBJECTIVES: dict[str, Mode] = {"loss": "min", "model_bytes": "min"}


def test_a_grid_with_two_objectives_has_a_pareto_front(own_lab: MakeLab, tmp_path: Path) -> None:
    """Result, leaderboard, report and the best model agree, and models that violate a constraint come last."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    space = {"lr": [0.001, 0.1], "width": [4, 32, 256], "batch_size": [5]}
    with pytest.raises(MetricError, match="'recall' is not returned by WideTraining"):
        experiment.run_fit(WideTraining(), space, objectives={"loss": "min", "recall": "max"}, **SETTINGS)
    result = experiment.run_fit(
        WideTraining(),
        space,
        epochs=2,
        objectives={**OBJECTIVES, "train_s": "min"},
        constraints=["model_bytes <= 9000", "test_row_s < 60"],
        **SETTINGS,
    )
    board = result.leaderboard()
    assert list(board.columns[2:8]) == ["loss", "model_bytes", "train_s", "test_row_s", "front", "feasible"]
    assert list(board["feasible"]) == [True] * 4 + [False] * 2
    assert set(board["width"][4:]) == {256}
    assert board[["loss", "model_bytes", "train_s", "test_row_s"]].notna().all().all()
    assert list(board["front"]) == sorted(board["front"])

    front = result.pareto()
    values = front[["loss", "model_bytes", "train_s"]].to_numpy(dtype=float)
    points = {model: tuple(map(float, row)) for model, row in zip(front["model"], values, strict=True)}
    feasible = front[front["feasible"]]
    assert set(feasible["model"]) == set(board["model"][board["front"] == 1])
    assert not any(dominates(points[a], points[b]) for a in feasible["model"] for b in feasible["model"])
    assert result.best.id == board["model"].iloc[0] == front["model"].iloc[0]
    assert result.plot_pareto().data
    result.report(tmp_path / "report.html")
    assert "Pareto front" in (tmp_path / "report.html").read_text()


def test_asha_with_tpe_uses_all_objectives(own_lab: MakeLab) -> None:
    """The search ends, and the reasons of stops name both objectives."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    result = experiment.run_fit(
        WideTraining(),
        {"lr": loguniform(1e-3, 1e-1), "width": randint(4, 256, log=True), "batch_size": 5},
        epochs=3,
        samples=12,
        search=ASHA(eta=3, sampler=TPE(startup=4)),
        objectives=OBJECTIVES,
        **SETTINGS,
    )
    assert len(result.leaderboard()) == 12
    run = lab.log(experiment).state().runs["fit-1"]
    assert run.search is not None
    stops = [why for why in run.search.verdicts.values() if "is not among the best" in why]
    assert stops
    assert all(why.startswith("loss ") and ", model_bytes " in why for why in stops)
    assert set(result.pareto()["model"]) <= set(run.models)
