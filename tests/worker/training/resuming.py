"""Run attempts of a sub-epoch that resume from savepoints."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.errors import PreemptedError
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee
from tests.worker.training.handlers import learn_from

CPU = torch.device("cpu")
ROWS, SIZE = 46, 4
BATCHES = 12
"""The last batch has two rows."""


class Spec(SubEpochSpec):
    """A resumable loop: dropout, momentum, schedule, random draws, `progress`, accumulation over two batches.

    All state is in tracked objects.
    """

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        layers = torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.4), torch.nn.Linear(6, 1)
        return [torch.nn.Sequential(*layers)]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        checkpoint.track(optimizer=optimizer, scheduler=scheduler)
        checkpoint["sub_epochs"] = checkpoint.get("sub_epochs", 0) + 1
        torch.rand(3), random.random(), np.random.rand()
        total = dataloader.progress({"loss": 0.0, "ids": []})
        for inputs, outputs in dataloader:
            step(network, inputs / ROWS, outputs / ROWS, total)
            total["ids"] += dataloader.ids
            if dataloader.step % 2:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if dataloader.step == 7:
                network[0].bias.requires_grad_(False)
        checkpoint["ids"] = total["ids"]
        return {
            "loss": total["loss"],
            "rate": scheduler.get_last_lr()[0],
            "sub_epochs": checkpoint["sub_epochs"],
        }


def step(
    network: torch.nn.Module, inputs: torch.Tensor, outputs: torch.Tensor, total: dict[str, Any]
) -> None:
    """Add a batch's gradients; use all random generators."""
    noise = random.random() + float(np.random.normal()) + torch.rand(1)
    loss = torch.nn.functional.mse_loss(network(inputs), outputs.float()[:, None] + noise)
    torch.autograd.backward(loss)
    total["loss"] += loss.item()


@dataclass(kw_only=True)
class SubEpoch:
    """A sub-epoch with its attempts."""

    rows: MappedRows
    folder: Path
    spec: SubEpochSpec = field(default_factory=Spec)
    start: State | None = None
    newest: str = ""
    """Name of the newest savepoint's file."""
    taken: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def attempt(self, saves: Collection[int] = (), stop: int | None = None) -> State | None:
        """Resume from the newest savepoint and return the final state, or None if stopped.

        Args:
            saves: batches before which to take a savepoint.
            stop: batch before which the attempt ends.
        """
        trainee, resumed = self.trainee()
        loader = PartitionLoader(
            self.rows,
            batch_size=SIZE,
            seed=sub_epoch_seed(0, "m00", 1, 0),
            first=resumed["batch"] if resumed else 0,
        )
        savepoints = Savepoints(trainee, write=self.write, resumed=resumed)

        def on_batch(done: int, batch: int, values: Mapping[str, float]) -> None:
            if done < ROWS and batch in saves and savepoints.take(batch, done):
                self.taken.append(batch)
            if batch == stop:
                raise PreemptedError

        feed = InstrumentedLoader(loader, on_batch, savepoints=savepoints)
        with suppress(PreemptedError):
            metrics = train_sub_epoch(self.spec, trainee, feed, {}, seed=0, model="m00", epoch=1, partition=0)
            self.metrics = numbers_of(metrics)
            return trainee.state()
        return None

    def trainee(self) -> tuple[Trainee, Mapping[str, Any] | None]:
        trainee = create(self.spec, {}, seed=0, model="m00", device=CPU)
        state = self.loaded() if self.newest else copy.deepcopy(self.start)
        if state is not None:
            restore(trainee, state)
        return trainee, (state or {}).get("savepoint")

    def loaded(self) -> State:
        state = torch.load(self.folder / self.newest, weights_only=True)
        assert isinstance(state, dict)
        return state

    def write(self, state: State, batch: int, rows: int) -> None:
        assert rows == batch * SIZE
        self.newest = checkpoints.save(self.folder, f"s{batch}-{len(self.taken)}.pt", state).name


@contextmanager
def sub_epoch(
    rows: MappedRows, spec: SubEpochSpec | None = None, start: State | None = None
) -> Iterator[SubEpoch]:
    with tempfile.TemporaryDirectory() as folder:
        yield SubEpoch(rows=rows, folder=Path(folder), spec=spec or Spec(), start=start)


class Loop(Spec):
    """A spec with a tracked optimizer and a loop given by the test."""

    def __init__(self, loop: Callable[[torch.nn.Module, DataLoader, Checkpoint], object]) -> None:
        self.loop = loop

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        self.loop(models[0], dataloader, checkpoint)
        return {}


def tracked(network: torch.nn.Module, checkpoint: Checkpoint) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    checkpoint.track(optimizer=optimizer)
    return optimizer


def learn(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    loss = network(batch[0] / ROWS).square().mean()
    learn_from(loss, optimizer)
    return float(loss.detach())


def template(network: torch.nn.Module, dataloader: DataLoader, checkpoint: Checkpoint) -> None:
    optimizer = tracked(network, checkpoint)
    for batch in dataloader:
        loss = learn(network, optimizer, batch)
        dataloader.report(loss=loss)
