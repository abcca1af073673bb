"""What cannot be stacked is refused with the layer or the setting, before any weight changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cerebro.errors import NotApplicableError
from tests.worker.training.fused.groups import Steps, Training
from tests.worker.training.fused.test_equality import with_all


class Layers(Steps):
    """A network with one more layer, or a step of its own."""

    layer: Callable[..., nn.Module] = nn.Identity

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [nn.Sequential(nn.Flatten(), nn.Linear(64, 8), type(self).layer(hyperparams), nn.Linear(8, 3))]


class Item(nn.Module):
    """Reads a number of a tensor."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * rows.sum().item()


class Branch(nn.Module):
    """Decides by a tensor."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if rows.sum() > 0 else -rows


class Plain(nn.Module):
    """Has random numbers that are no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.randn(8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.projection


class NumpyNoise(nn.Module):
    """Draws from Python's generator."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * random.random()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda _: nn.RReLU(), r"RReLU '2': .*rrelu"),
        (lambda _: Item(), r"Item '2': .*\.item\(\)"),
        (lambda _: Branch(), "Branch '2': .*control flow"),
        (lambda _: Plain(), r"projection of module 0 \(2\) is tensor.* in m00 and tensor.* in m01"),
        (lambda _: NumpyNoise(), "Python's or NumPy's generator"),
        (lambda h: nn.Dropout(h["lr"]), r"p of module 0 \(2\) is 0.01 in m00 and 0.003 in m01"),
        (lambda h: nn.Linear(8, 8, bias=h["lr"] > 0.005), r"bias .*module 0|0/2.bias"),
        (
            lambda h: nn.ReLU() if h["lr"] > 0.005 else nn.GELU(),
            "the class of module 0 .* is ReLU in m00 and GELU",
        ),
    ],
)
def test_a_layer_is_refused_by_name(layer: Any, message: str, partitions: list[Path]) -> None:
    """The message has the layer's class and name, and the reason."""
    training = Training(type("Mine", (Layers,), {"layer": staticmethod(layer)})(), partitions, with_all())
    with pytest.raises(NotApplicableError, match=message):
        training.stack(0, [0, 1, 2])
    assert all(model.state is None and model.error is None for model in training.models)


def _lbfgs(self: Any, models: list[Any], hyperparams: Any) -> Any:
    return torch.optim.LBFGS(models[0].parameters())


def _other_parameters(self: Any, models: list[Any], hyperparams: Any) -> Any:
    parameters = list(models[0].parameters())
    return torch.optim.SGD(parameters if hyperparams["lr"] > 0.005 else parameters[:2], lr=0.1)


def _reads_text(self: Any, models: list[Any], batch: Any, hyperparams: Any) -> Any:
    assert hyperparams["kind"]
    return functional.cross_entropy(models[0](batch[0]), batch[1])


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        ({"configure_optimizers": _lbfgs}, {}, "cannot step the optimizer LBFGS"),
        ({"configure_optimizers": _other_parameters}, {}, "models m00 and m01 step different parameters"),
        ({"training_step": _reads_text}, {}, "'kind', which is no number and differs"),
        ({}, {"precision": "fp16"}, "precision 'fp16'"),
    ],
)
def test_a_setting_is_refused_by_name(
    members: dict[str, Any], options: dict[str, Any], message: str, partitions: list[Path]
) -> None:
    """Optimizers that combine weights, and settings that cannot be stacked."""
    hyperparams = with_all(**options)
    for number, each in enumerate(hyperparams):
        each["kind"] = f"k{number}"
    training = Training(type("Mine", (Steps,), members)(), partitions, hyperparams)
    with pytest.raises(NotApplicableError, match=message):
        training.stack(0, [0, 1, 2])


def test_models_that_accumulate_differently_are_refused(partitions: list[Path]) -> None:
    """They would step after different batches."""
    hyperparams = with_all()
    hyperparams[1]["accumulate"] = 2
    with pytest.raises(NotApplicableError, match="accumulate is 1 and 2"):
        Training(Steps(), partitions, hyperparams).stack(0, [0, 1, 2])
