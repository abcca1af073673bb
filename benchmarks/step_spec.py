"""`StepSpec` against the same loop by hand in a `SubEpochSpec`: time of a sub-epoch on one CPU thread.

Both train the same network on the same batches, with `train_sub_epoch` as a worker does, and return loss and accuracy.
They alternate in one process, which counts the CPU time of each sub-epoch. A small network shows the overhead of the
loop, a larger one a usual step.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.figure import Figure
from cerebro import StepSpec, SubEpochSpec
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.mapped import MappedRows
from cerebro.data.shards import write_rows
from cerebro.spec import Checkpoint, DataLoader
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.sub_epoch import create, train_sub_epoch

BAR = 1.02
ROUNDS = 13
_ROWS, _BATCH, _CLASSES = 6_400, 32, 10


def _perceptron() -> nn.Module:
    layers = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, _CLASSES)
    return nn.Sequential(nn.Flatten(), *layers)


def _convolutions() -> nn.Module:
    layers = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, _CLASSES))


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "MLP 64-128-128-10": (_perceptron, _ROWS),
    "the digits' CNN": (_convolutions, _ROWS // 8),
}
"""Name -> network and rows of a sub-epoch."""


class Steps(StepSpec):
    """A classifier by steps."""

    def __init__(self, network: Callable[[], nn.Module]) -> None:
        self.network = network

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create the network."""
        return [self.network()]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        """Return loss and accuracy."""
        inputs, labels = batch
        logits = models[0](inputs)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        """Return Adam."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])


class Loop(SubEpochSpec):
    """The same classifier with its own loop, as in the documentation."""

    def __init__(self, network: Callable[[], nn.Module]) -> None:
        self.network = network

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create the network."""
        return [self.network()]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        """Make one pass."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0, "accuracy": 0.0})
        for inputs, labels in dataloader:
            logits = network(inputs)
            loss = functional.cross_entropy(logits, labels)
            accuracy = (logits.argmax(1) == labels).float().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            total["loss"] += loss.item() * len(labels)
            total["accuracy"] += accuracy.item() * len(labels)
            dataloader.report(loss=loss, accuracy=accuracy)
        return {name: value / dataloader.num_rows for name, value in total.items()}


def benchmark() -> list[Figure]:
    """Measure each network."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        return [_figure(what, Path(name)) for what in NETWORKS]


def _figure(what: str, folder: Path) -> Figure:
    network, count = NETWORKS[what]
    rows = _partition(folder / what.replace(" ", "-"), count)
    seconds: dict[type[SubEpochSpec], list[float]] = {Steps: [], Loop: []}
    for number in range(ROUNDS + 1):
        for kind in (Steps, Loop) if number % 2 else (Loop, Steps):
            elapsed = _sub_epoch(kind(network), rows)
            if number:  # the first round warms up
                seconds[kind].append(elapsed)
    ratios = [ours / theirs for ours, theirs in zip(seconds[Steps], seconds[Loop], strict=True)]
    steps, loop = (statistics.median(each) * 1e6 * _BATCH / count for each in seconds.values())
    return Figure(
        what=f"StepSpec, {what}: CPU time of a sub-epoch, against the same loop by hand",
        measured=f"medians of {ROUNDS}: {steps:.0f} us a batch, by hand {loop:.0f} us; ratio: median of the pairs",
        ratio=statistics.median(ratios),
        bar=BAR,
        sense="at most",
    )


def _partition(folder: Path, count: int) -> MappedRows:
    random = np.random.default_rng(0)
    pictures = random.random((count, 1, 8, 8), np.float32)
    labels = random.integers(0, _CLASSES, count).tolist()
    write_rows(folder, list(zip(pictures, labels, strict=True)), Source(fingerprint="bench", metadata="none"))
    return MappedRows.open([folder])


def _sub_epoch(spec: SubEpochSpec, rows: MappedRows) -> float:
    hyperparams = {"lr": 1e-3, "batch_size": _BATCH}
    trainee = create(spec, hyperparams, seed=0, model="m00", device=torch.device("cpu"))
    loader = InstrumentedLoader(PartitionLoader(rows, batch_size=_BATCH, seed=0))
    gc.collect()
    began = time.process_time()
    train_sub_epoch(spec, trainee, loader, hyperparams, seed=0, model="m00", epoch=1, partition=0)
    return time.process_time() - began
