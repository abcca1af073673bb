"""Fused groups: a fit whose models train as stacks, against the same fit with one model at a time, interleaved.

Both fits run on one local cluster with two workers, from call to result. A first fit of each kind isn't counted. The
networks are small, as for tables, so most of a step's time is the interpreter's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.training import CLASSES, FEATURES, preprocessed
from cerebro import Experiment, Parallelism, StepSpec
from cerebro.techniques import Fused

_BAR = 3.0
_MODELS, _EPOCHS, _ROWS, _ROUNDS = 32, 3, 12_000, 2
_SPACE: dict[str, list[Any]] = {
    "lr": [0.0002 * (1 + number) for number in range(_MODELS)],
    "batch_size": [32],
}


class Table(StepSpec):
    """Two hidden layers and Adam."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create a network for rows of a table."""
        layers = [nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()]
        return [nn.Sequential(*layers, nn.Linear(32, CLASSES))]

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(models[0](batch[0]), batch[1])

    def configure_optimizers(self, models: Any, hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])


def measure() -> dict[str, list[float]]:
    """Return the seconds of each fit, by technique."""
    seconds: dict[str, list[float]] = {"single": [], "fused": []}
    with preprocessed("fused", _ROWS) as experiment:
        for turn in range(_ROUNDS + 1):
            for name, found in seconds.items():
                taken = _fit_s(experiment, name)
                found.extend([taken] if turn else [])
    return seconds


def benchmark() -> list[Figure]:
    """Return the time of one model at a time over the time of stacks."""
    seconds = measure()
    single, fused = (statistics.median(seconds[name]) for name in ("single", "fused"))
    return [
        Figure(
            what=f"stacks: {_MODELS} networks for tables x {_EPOCHS} epochs on 2 workers, single over fused",
            measured=f"{single:.1f} s with one model at a time, {fused:.1f} s as stacks",
            ratio=single / fused,
            bar=_BAR,
            sense="at least",
        )
    ]


def _fit_s(experiment: Experiment, technique: str) -> float:
    parallelism = Parallelism(techniques=[Fused(models=_MODELS) if technique == "fused" else technique])
    began = time.monotonic()
    experiment.run_fit(
        Table(),
        dict(_SPACE),
        epochs=_EPOCHS,
        metric="loss",
        mode="min",
        parallelism=parallelism,
        progress=False,
    )
    return time.monotonic() - began
