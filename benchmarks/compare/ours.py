"""Cerebro on the common task: the two classes that a user writes, and a run on a cluster that is up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.compare import task
from benchmarks.compare.contenders import Outcome
from benchmarks.training import run_events
from cerebro import ETLSpec, Experiment, SubEpochSpec
from cerebro.contract.events import TaskCommitted
from cerebro.local import cluster

REPOSITORY = Path(__file__).resolve().parents[2]


class Preprocess(ETLSpec):
    """A row's number becomes its inputs."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """The row's inputs, drawn from its number, and its label."""
        return task.row(row["id"]), row["label"]


class Train(SubEpochSpec):
    """`task.network`, trained by `task.step`."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """One network, as all methods train it."""
        return [task.network()]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """One pass over the partition."""
        (network,) = models
        optimizer = task.adam(network.parameters(), hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            task.step(network, optimizer, inputs, labels)
        return {"held": task.held(r"/shards/.*train.*")}

    @torch.no_grad()
    def test(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Accuracy on the held-out rows."""
        (network,) = models
        correct = sum(int((network(inputs).argmax(1) == labels).sum()) for inputs, labels in dataloader)
        return {"accuracy": correct / dataloader.num_rows}


@contextmanager
def preprocessed(root: Path, rows: int) -> Iterator[Experiment]:
    """An experiment on a cluster that has just been started below `root`, its data preprocessed and nothing trained.
    The cluster ends with the context."""
    home = root / "home"
    locators = {split: {"metadata": str(root / f"{split}.csv")} for split in task.SPLITS}
    for split in task.SPLITS:
        lines = (f"{number},{task.label(number)}" for number in task.numbers(split, rows))
        (root / f"{split}.csv").write_text("\n".join(["id,label", *lines]))
    try:
        with patch.dict(os.environ, {"PYTHONPATH": str(REPOSITORY)}):  # the workers import `task`
            info = cluster.start(home, workers=task.WORKERS, tensorboard=False)
        experiment = Experiment("compare", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(Preprocess(), progress=False)
        yield experiment
    finally:
        cluster.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def fit(experiment: Experiment, root: Path, rates: list[float]) -> Outcome:
    """One model per rate, one epoch; from the call of `run_fit` to the leaderboard."""
    space = {"lr": rates, "batch_size": [task.BATCH]}
    began = time.monotonic()
    result = experiment.run_fit(Train(), space, epochs=1, metric="accuracy", mode="max", progress=False)
    board = result.leaderboard()
    seconds = time.monotonic() - began
    accuracy = dict(zip(board["lr"], board["accuracy"], strict=True))
    held = [
        event.result.metrics["held"]
        for event in run_events(experiment, result.run)
        if isinstance(event, TaskCommitted) and "held" in event.result.metrics
    ]
    return Outcome(
        seconds=seconds,
        accuracy=[float(accuracy[rate]) for rate in rates],
        held=int(max(held)),
        moved=_moved(root / "home/volumes/checkpoints/compare" / result.run),
    )


def _moved(folder: Path) -> int:
    """Bytes of checkpoints that were written and read: a sub-epoch writes one, and it is read by the next sub-epoch of
    its model, the last one by the validation."""
    return 2 * sum(path.stat().st_size for path in folder.rglob("*.pt"))
