"""Parallel plans: sub-epochs on two devices give the weights of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Parallelism, SubEpochSpec
from cerebro.contract.events import TaskAssigned, TaskFailed
from cerebro.contract.tasks.failures import FailureKind
from cerebro.runtime.usage import cores
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import FEATURES

pytestmark = pytest.mark.slow

SPACE = {"lr": [0.05, 0.1], "batch_size": 5}
SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "metric": "loss",
    "mode": "min",
    "seed": 3,
    "progress": False,
}


class Descent(SubEpochSpec):
    """A small network and an optimizer with state; the model with the larger rate runs out of memory on one device."""

    def __init__(self, *, large: float = -1.0) -> None:
        self.large = large

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        if hyperparams["lr"] == self.large and dataloader.ranks == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        optimizer = torch.optim.SGD(network.parameters(), lr=hyperparams["lr"], momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        total = 0.0
        for inputs, labels in dataloader:
            loss = nn.functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
        return {"loss": total / dataloader.num_rows}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        total = 0.0
        for inputs, labels in dataloader:
            total += float(nn.functional.cross_entropy(network(inputs), labels, reduction="sum"))
        return {"loss": total / dataloader.num_rows}


def weights(result: Any, model: str) -> list[torch.Tensor]:
    """Return the final weights of a model."""
    return [each.detach() for each in result.model(model).modules()[0].parameters()]


def test_sub_epochs_on_two_devices_train_the_weights_of_one_device(own_lab: MakeLab) -> None:
    """By a named technique, and by the next plan after running out of memory.

    Each sub-epoch has both devices, the tables say so, and the weights match up to rounding.
    """
    if cores.available() < 2:
        pytest.skip("two devices need two cores")
    lab = own_lab(workers=1, CEREBRO_DEVICES="2")
    experiment = lab.prepared()
    single = experiment.run_fit(Descent(), SPACE, parallelism=Parallelism(trials="never"), **SETTINGS)
    wide = experiment.run_fit(
        Descent(), SPACE, parallelism=Parallelism(techniques=["ddp"], gpus=[2], trials="never"), **SETTINGS
    )
    mixed = experiment.run_fit(
        Descent(large=0.1),
        SPACE,
        parallelism=Parallelism(techniques=["single", "ddp"], trials="never"),
        **SETTINGS,
    )
    assert (single.failures(), wide.failures(), mixed.failures()) == ({}, {}, {})
    for result in (wide, mixed):
        for model in ("m00", "m01"):
            for one, other in zip(weights(single, model), weights(result, model), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    log = lab.log(experiment).read()
    given = [e for e in log if isinstance(e, TaskAssigned) and "/train/" in e.task]
    assert {
        (e.parallel_plan.label if e.parallel_plan else "", e.devices)
        for e in given
        if e.task.startswith("fit-2")
    } == {("ddp-2", (0, 1))}
    assert {e.parallel_plan for e in given if e.task.startswith("fit-1")} == {None}
    failed = [e for e in log if isinstance(e, TaskFailed)]
    assert [(e.task, e.failure.kind, e.failure.memory_kind) for e in failed] == [
        ("fit-3/train/m01/e1/p0", FailureKind.OUT_OF_MEMORY, "device")
    ]
    sub_epochs = mixed.sub_epochs()
    assert {
        (model, parallel_plan, len(devices))
        for model, parallel_plan, devices in zip(
            sub_epochs["model"], sub_epochs["parallel_plan"], sub_epochs["devices"], strict=True
        )
    } == {
        ("m00", "single", 1),
        ("m01", "ddp-2", 2),
    }
    plan_table = mixed.parallel_plans().set_index(["model", "parallel_plan"])
    assert plan_table["sub_epochs"].to_dict() == {
        ("m00", "single"): 2,
        ("m00", "ddp-2"): 0,
        ("m01", "single"): 0,
        ("m01", "ddp-2"): 2,
    }
    assert plan_table["ruled out"]["m01", "single"].startswith("out of memory of the device: ")
