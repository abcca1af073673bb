"""A fit scheduled by priority score."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Scheduling
from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.results import MAX_POINTS
from tests.e2e.harness import Lab
from tests.e2e.specs import FEATURES, TinyTraining
from tests.e2e.test_replay import replay


class Reporting(TinyTraining):
    """Reports each batch's loss over several passes, more points than a curve keeps."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.Linear(FEATURES, 3)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        for _ in range(40):
            for inputs, labels in dataloader:
                loss = nn.functional.cross_entropy(network(inputs), labels)
                slopes = torch.autograd.grad(loss, list(network.parameters()))
                for weight, slope in zip(network.parameters(), slopes, strict=True):
                    weight.data.sub_(slope, alpha=hyperparams["lr"])
                dataloader.report(loss=loss)
        return {"loss": loss.item()}


@pytest.mark.slow
def test_models_that_learn_are_trained_before_those_that_do_not(lab: Lab) -> None:
    """The score uses the curves in the log; the weights equal a replay."""
    experiment = lab.prepared()
    space = {"lr": [0.0, 0.3], "alike": [1, 2, 3], "batch_size": [4]}
    result = experiment.run_fit(
        Reporting(),
        space,
        epochs=3,
        metric="loss",
        mode="min",
        scheduling=Scheduling(scheduler="promising"),
        progress=False,
    )
    assert result.failures() == {}
    log = lab.log(experiment)
    commits = (event for event in log.read() if isinstance(event, TaskCommitted))
    committed = [event for event in commits if event.task.startswith("fit-1/train/")]
    places: dict[str, list[int]] = {}
    for place, event in enumerate(committed):
        curve = event.result.curve
        assert curve is not None
        assert (curve.name, 1 < len(curve.points) <= MAX_POINTS) == ("loss", True)
        assert sum(point.number for point in curve.points) == 40 * -(-event.result.rows // 4)
        places.setdefault(event.task.split("/")[2], []).append(place)
    learns = {
        name: model.hyperparams["lr"] != 0 for name, model in experiment.state().runs["fit-1"].models.items()
    }
    means = {
        is_so: fmean(p for name in places for p in places[name] if learns[name] is is_so)
        for is_so in (True, False)
    }
    assert means[True] < means[False]
    lines = (
        f"m0{number}: replaying 6 sub-epochs\nm0{number}: 6 sub-epochs replayed, final state equal to the bit\n"
        for number in range(6)
    )
    assert replay(experiment.name) == (0, "".join(lines))
