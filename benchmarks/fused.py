"""Fused groups: fits whose models train as stacks, against fits with one model at a time, interleaved.

All fits run on one local cluster with two workers, from call to result. A first fit of each kind is not counted. Stacks
gain with small networks for tables, because most of a step's time is the interpreter's. They lose with a network that
fills a core; a run that names both techniques should lose only the measurement.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from benchmarks.training import CLASSES, FEATURES, preprocessed
from cerebro import Experiment, Parallelism, StepSpec
from cerebro.techniques import Fused

_BAR, _BAR_OF_BOTH, _BAR_OF_WIDE = 3.0, 2.0, 1.05
_MODELS, _EPOCHS, _ROWS, _ROUNDS = 32, 3, 12_000, 2
_WIDE_MODELS, _WIDE_EPOCHS, _PIXELS = 8, 8, 784


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


class Wide(Table):
    """A network of 784-1024-512-10, which fills a core alone. A row is repeated until it has 784 numbers."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create the network."""
        layers = [nn.Linear(_PIXELS, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()]
        return [nn.Sequential(*layers, nn.Linear(512, 10))]

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        pixels = batch[0].repeat(1, 1 + _PIXELS // FEATURES)[:, :_PIXELS]
        return functional.cross_entropy(models[0](pixels), batch[1])


def measure(
    spec: StepSpec, names: Sequence[str], *, models: int, epochs: int, batch_size: int
) -> dict[str, list[float]]:
    """Return the seconds of each fit, by technique; ``both`` names single and fused."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    space = {"lr": [0.0002 * (1 + number) for number in range(models)], "batch_size": [batch_size]}
    fused = Fused(models=models)
    techniques: dict[str, list[Any]] = {"single": ["single"], "fused": [fused], "both": ["single", fused]}
    with preprocessed("fused", _ROWS) as experiment:
        for turn in range(_ROUNDS + 1):
            for name, found in seconds.items():
                # The first fits start processes and import libraries; one epoch shows it.
                taken = _fit_s(experiment, spec, space, techniques[name], epochs if turn else 1)
                found.extend([taken] if turn else [])
    return seconds


def benchmark() -> list[Figure]:
    """Return the time of one model at a time over the time of stacks, and of runs that name both."""
    table = measure(Table(), ("single", "fused", "both"), models=_MODELS, epochs=_EPOCHS, batch_size=32)
    single, fused, both = (statistics.median(table[name]) for name in ("single", "fused", "both"))
    tables = f"{_MODELS} networks for tables x {_EPOCHS} epochs on 2 workers"
    wide = measure(Wide(), ("single", "both"), models=_WIDE_MODELS, epochs=_WIDE_EPOCHS, batch_size=128)
    wide_single, wide_both = statistics.median(wide["single"]), statistics.median(wide["both"])
    return [
        Figure(
            what=f"stacks: {tables}, single over fused",
            measured=f"{single:.1f} s with one model at a time, {fused:.1f} s as stacks",
            ratio=single / fused,
            bar=_BAR,
            sense="at least",
        ),
        Figure(
            what=f"stacks: {tables}, single over a run that names both",
            measured=f"{single:.1f} s with one model at a time, {both:.1f} s with the choice",
            ratio=single / both,
            bar=_BAR_OF_BOTH,
            sense="at least",
        ),
        Figure(
            what=f"stacks: {_WIDE_MODELS} networks of 784-1024-512-10 x {_WIDE_EPOCHS} epochs on 2 workers, a run that "
            "names both over single",
            measured=f"{wide_both:.1f} s with the choice, {wide_single:.1f} s with one model at a time",
            ratio=wide_both / wide_single,
            bar=_BAR_OF_WIDE,
            sense="at most",
        ),
    ]


def _fit_s(
    experiment: Experiment, spec: StepSpec, space: Mapping[str, Any], techniques: list[Any], epochs: int
) -> float:
    began = time.monotonic()
    experiment.run_fit(
        spec,
        dict(space),
        epochs=epochs,
        metric="loss",
        mode="min",
        parallelism=Parallelism(techniques=techniques),
        progress=False,
    )
    return time.monotonic() - began
