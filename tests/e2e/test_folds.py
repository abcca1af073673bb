"""Cross-validation by partitions on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import Parallelism
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "metric": "loss",
    "mode": "min",
    "seed": 3,
    "progress": False,
    "parallelism": Parallelism(trials="never"),
}
GRID = {"lr": [0.003, 0.3], "batch_size": 5}


def test_two_folds_of_a_grid(lab: Lab) -> None:
    """Each model trains on one fold and validates on the other one; the values of both folds give the mean."""
    experiment = lab.prepared()
    result = experiment.run_fit(TinyTraining(), GRID, epochs=2, folds=2, **SETTINGS)
    assert result.failures() == {}
    run = lab.check(experiment)
    found = result.folds()
    assert list(found.index) in (["m00", "m01"], ["m01", "m00"])
    for name, row in found.iterrows():
        assert row["loss mean"] == pytest.approx((row["fold 1"] + row["fold 2"]) / 2)
        models = [run.models[f"{name}-f{number}"] for number in (1, 2)]
        assert [model.partitions for model in models] == [(1,), (0,)]
