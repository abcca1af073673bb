"""A small job on a real local cluster for `gap`, `efficiency` and `devices`: numbers from a table, a small network."""

from __future__ import annotations

import csv
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, SubEpochSpec
from cerebro.contract.events import Event, TaskAssigned, TaskCommitted
from cerebro.local import cluster

FEATURES, CLASSES = 32, 4
WORKERS = 2


class TableETL(ETLSpec):
    """Turns a row of numbers into a vector and a label."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return a row as inputs and label."""
        return np.array([row[f"x{i}"] for i in range(FEATURES)], np.float32), row["label"]


class Perceptron(SubEpochSpec):
    """Two hidden layers and Adam; makes `passes` passes over its partition in a sub-epoch."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create one network of the given size."""
        width = hyperparams["width"]
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return [nn.Sequential(*layers, nn.Linear(width, CLASSES))]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Make the requested passes over the partition."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        if "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        loss = torch.zeros(())
        for _ in range(hyperparams["passes"]):
            for inputs, labels in dataloader:
                loss = functional.cross_entropy(network(inputs), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        checkpoint["optimizer"] = optimizer.state_dict()
        return {"loss": loss.item()}


@contextmanager
def preprocessed(
    name: str,
    rows: int,
    *,
    workers: int = WORKERS,
    devices: int = 1,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Experiment]:
    """Yield an experiment with `rows` preprocessed training rows, on a local cluster that ends with the context.

    Args:
        variables: environment variables of its services.
    """
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        home = Path(folder) / "home"
        try:
            with patch.dict(os.environ, variables):
                info = cluster.start(home, workers=workers, devices=devices, tensorboard=False)
            locators = {"train": {"metadata": str(_table(Path(folder) / "train.csv", rows))}}
            experiment = Experiment(name, locators=locators, server=info.kvs, token=info.token())
            experiment.run_etl(TableETL(), progress=False)
            yield experiment
        finally:
            cluster.stop(home)


def passes_taking(seconds: float, *, rows: int, batch: int, width: int) -> int:
    """Return the number of passes over the rows that take these seconds on one CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    labels = torch.arange(batch) % CLASSES
    batches = [(torch.randn(batch, FEATURES), labels) for _ in range(rows // batch)]
    trial = {"width": width, "lr": 0.001, "passes": 20}
    models = Perceptron().create_models(trial)
    began = time.process_time()  # not wall time, because a busy machine must not shorten the sub-epochs
    Perceptron().train(models, {}, batches, trial)
    used_s = time.process_time() - began
    torch.set_num_threads(threads)
    return max(1, round(trial["passes"] * seconds / used_s))


def between_s(before: TaskCommitted, after: TaskCommitted) -> float:
    """Return the seconds from the end of a sub-epoch's training to the start of the next one's on the same devices.

    A commit reaches the store a message after the checkpoint is saved; this delay is about the same for both.
    """
    ended = before.time - before.result.timings.save_s
    began = after.time - after.result.timings.save_s - after.result.timings.compute_s
    return began - ended


def run_events(experiment: Experiment, run: str) -> list[Event]:
    """Return the events of a run's tasks, oldest first, as stored."""
    found: list[Event] = []
    kvs = experiment.connection.kvs
    after = 0
    while events := kvs.events(experiment.name, after):
        after = events[-1].seq
        found.extend(event for event in events if getattr(event, "task", "").startswith(f"{run}/"))
    return found


def places(events: list[Event]) -> dict[tuple[str, int], tuple[str, tuple[int, ...]]]:
    """Return (task, attempt) -> its worker and devices."""
    return {
        (event.task, event.attempt): (event.worker, event.devices)
        for event in events
        if isinstance(event, TaskAssigned)
    }


def commits_by_worker(events: list[Event]) -> dict[str, list[TaskCommitted]]:
    """Return worker -> its commits, oldest first."""
    found: dict[str, list[TaskCommitted]] = {}
    for event in events:
        if isinstance(event, TaskCommitted):
            found.setdefault(event.worker, []).append(event)
    return found


def _table(path: Path, rows: int) -> Path:
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"x{i}" for i in range(FEATURES)), "label"])
        for row in range(rows):
            writer.writerow([row, *(round(draw.gauss(0, 1), 4) for _ in range(FEATURES)), row % CLASSES])
    return path
