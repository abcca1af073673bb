"""Fused groups: alike models train in one process and get the weights of separate training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Limits, Parallelism, StepSpec
from cerebro.contract.events import TaskAssigned
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import FEATURES

pytestmark = pytest.mark.slow

SPACE = {"lr": [0.01, 0.02, 0.05, 0.1], "batch_size": 5}
SETTINGS: dict[str, Any] = {"epochs": 2, "metric": "loss", "mode": "min", "seed": 3, "progress": False}


class Descent(StepSpec):
    """A small network; with `lr` equal to `bad` the loss becomes NaN."""

    def __init__(self, *, bad: float = -1.0) -> None:
        self.bad = bad

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))]

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        inputs, labels = batch
        return nn.functional.cross_entropy(models[0](inputs), labels)

    def configure_optimizers(self, models: Any, hyperparams: Any) -> Any:
        lr = float("nan") if hyperparams["lr"] == self.bad else hyperparams["lr"]
        return torch.optim.SGD(models[0].parameters(), lr=lr, momentum=0.9)

    def validation_step(self, models: Any, batch: Any, hyperparams: Any) -> dict[str, Any]:
        inputs, labels = batch
        return {"loss": nn.functional.cross_entropy(models[0](inputs), labels)}


class Reading(Descent):
    """Reads the loss as a number, which a stack cannot."""

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        loss = super().training_step(models, batch, hyperparams)
        return {"loss": loss, "twice": 2 * loss.item()}


def weights(result: Any, model: str) -> list[torch.Tensor]:
    """Return the final weights of a model."""
    return [each.detach() for each in result.model(model).modules()[0].parameters()]


def test_fused_groups_train_the_weights_of_separate_training(own_lab: MakeLab) -> None:
    """One worker trains four models as one stack. A model whose loss is NaN fails alone."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    separate = experiment.run_fit(Descent(), SPACE, parallelism=Parallelism(trials="never"), **SETTINGS)
    together = Parallelism(techniques=["fused"], trials="never")
    fused = experiment.run_fit(Descent(), SPACE, parallelism=together, **SETTINGS)
    assert (separate.failures(), fused.failures()) == ({}, {})
    for model in ("m00", "m01", "m02", "m03"):
        for one, other in zip(weights(separate, model), weights(fused, model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    given = [
        e
        for e in lab.log(experiment).read()
        if isinstance(e, TaskAssigned) and e.task.startswith("fit-2/train/")
    ]
    assert [e.group and e.group.size for e in given] == [4] * 8
    ill = experiment.run_fit(Descent(bad=0.1), SPACE, parallelism=together, **SETTINGS)
    assert [*ill.failures()] == ["m03"]
    for model in ("m00", "m01", "m02"):
        for one, other in zip(weights(fused, model), weights(ill, model), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_models_that_a_stack_refuses_train_separately(own_lab: MakeLab) -> None:
    """No model fails or loses an attempt, and `result.parallel_plans` has the reason."""
    lab = own_lab(workers=1)
    experiment = lab.prepared()
    together = Parallelism(techniques=["fused"], trials="never")
    result = experiment.run_fit(
        Reading(), SPACE, parallelism=together, limits=Limits(max_attempts=1), **SETTINGS
    )
    assert result.failures() == {}
    plans = result.parallel_plans()
    refused = plans[plans["parallel_plan"].str.startswith("fused")]
    assert [*refused["ruled out"].str.contains(r"training_step\(\).*\.item\(\)")] == [True] * 4
    assert [*plans[plans["parallel_plan"] == "single"]["sub_epochs"]] == [2] * 4
