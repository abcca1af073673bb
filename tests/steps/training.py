"""Three small networks, each with a `StepSpec` and the same loop by hand, trained over several sub-epochs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cerebro import StepSpec, SubEpochSpec
from cerebro.contract.tasks.bodies import Position
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.errors import PreemptedError
from cerebro.spec import Checkpoint, DataLoader
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured, PerRowValues
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, evaluate, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

CPU = torch.device("cpu")
ROWS = (46, 43)
"""Rows of each partition."""
PLACES = ((1, 0), (1, 1), (2, 1), (2, 0))
"""(epoch, partition) of each sub-epoch."""
BASE = {"lr": 0.05, "batch_size": 8, "network": "mlp"}


class Recurrent(nn.Module):
    """An LSTM over the rows of an 8 x 8 picture."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(pictures[:, 0])[0][:, -1])
        return logits


def network(kind: str) -> nn.Module:
    """Return a network for pictures of 1 x 8 x 8."""
    if kind == "lstm":
        return Recurrent()
    if kind == "cnn":
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3)
        return nn.Sequential(*layers, nn.Linear(144, 3))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))


def optimizers(models: Sequence[nn.Module], hyperparams: Mapping[str, Any], steps: int) -> tuple[Any, Any]:
    """Return an optimizer and a schedule."""
    optimizer = torch.optim.AdamW(models[0].parameters(), lr=hyperparams["lr"])
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, hyperparams["lr"], total_steps=steps + 1)


class Steps(StepSpec):
    """The steps of a classifier."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [network(hyperparams["network"])]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        pictures, labels = batch
        logits = models[0](pictures)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return optimizers(models, hyperparams, self.total_steps)

    def validation_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        pictures, labels = batch
        return {"accuracy": (models[0](pictures).argmax(1) == labels).float().mean()}

    def prediction_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        return {"label": models[0](batch[0]).argmax(1)}


class Loop(SubEpochSpec):
    """The same training, by hand."""

    create_models = Steps.create_models

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        accumulate, clip_norm = hyperparams.get("accumulate", 1), hyperparams.get("clip_norm")
        steps = sum(-(-batches(partition, hyperparams) // accumulate) for _, partition in PLACES)
        optimizer, scheduler = optimizers(models, hyperparams, steps)
        checkpoint.track(optimizer=optimizer, scheduler=scheduler)
        total = dataloader.progress({"loss": 0.0, "correct": 0})
        first_step = dataloader.step
        for pictures, labels in dataloader:
            logits = models[0](pictures)
            loss = functional.cross_entropy(logits, labels)
            torch.autograd.backward(loss / accumulate)
            if (dataloader.step - first_step + 1) % accumulate == 0 or (
                dataloader.step - first_step + 1 == len(dataloader)
            ):
                if clip_norm:
                    nn.utils.clip_grad_norm_(models[0].parameters(), clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total["loss"] += loss.item() * len(labels)
            total["correct"] += int((logits.argmax(1) == labels).sum())
        rows = dataloader.num_rows
        return {"loss": total["loss"] / rows, "accuracy": total["correct"] / rows}


def batches(partition: int, hyperparams: Mapping[str, Any]) -> int:
    """Return the batches of a partition."""
    return -(-ROWS[partition] // int(hyperparams["batch_size"]))


def write_partitions(folder: Path) -> list[Path]:
    """Write pictures whose label is the brightest third."""
    random = np.random.default_rng(0)
    folders = [folder / str(partition) for partition in range(len(ROWS))]
    for path, rows in zip(folders, ROWS, strict=True):
        labels = random.integers(0, 3, rows)
        pictures = random.normal(size=(rows, 1, 8, 8)).astype(np.float32)
        for picture, label in zip(pictures, labels, strict=True):
            picture[0, 2 * label : 2 * label + 3] += 0.6
        source = Source(fingerprint="spec-1", metadata="xxh3_64:0")
        write_rows(path, list(zip(pictures, labels.tolist(), strict=True)), source)
    return folders


class Hopping:
    """Training of one model; each sub-epoch begins with a new model, restored from a file.

    Args:
        folders: partitions.
        hyperparams: changes to `BASE`.
        stop: batch before which each sub-epoch takes a savepoint and ends; another attempt resumes from it. A sub-epoch
            without savepoints goes on.
    """

    def __init__(
        self,
        spec: SubEpochSpec,
        folders: Sequence[Path],
        *,
        stop: int | None = None,
        device: torch.device = CPU,
        **hyperparams: Any,
    ) -> None:
        self.spec, self.folders, self.stop, self.device = spec, folders, stop, device
        self.hyperparams: dict[str, Any] = {**BASE, **hyperparams}
        self.metrics: list[Measured] = []
        self.warnings: list[str] = []
        self.saved_batches: list[int] = []

    def train(self) -> State:
        """Train all sub-epochs and return the last state."""
        state: State | None = None
        with tempfile.TemporaryDirectory() as folder:
            for sub_epoch in range(len(PLACES)):
                state = self._sub_epoch(Path(folder), sub_epoch, state)
        assert state is not None
        return state

    def _sub_epoch(self, folder: Path, sub_epoch: int, start: State | None) -> State:
        found = self._attempt(folder, sub_epoch, start, stop=self.stop)
        trainee = found if isinstance(found, Trainee) else self._attempt(folder, sub_epoch, found)
        self.warnings += trainee.warnings
        return checkpoints.load(folder, self._save(folder, trainee), "cpu")

    def _save(self, folder: Path, trainee: Trainee) -> Any:
        reference = trainee.save(folder, f"{len(list(folder.iterdir()))}.pt")
        assert reference is not None
        return reference

    def _attempt(self, folder: Path, sub_epoch: int, state: State | None, stop: int | None = None) -> Any:
        """Return the trained model, or the savepoint's state with `stop`."""
        epoch, partition = PLACES[sub_epoch]
        trainee = self.trainee(state)
        resumed = None if state is None else state.get("savepoint")
        written: list[State] = []

        def write(found: State, batch: int, rows: int) -> None:
            reference = trainee.save(folder, f"{len(list(folder.iterdir()))}.pt", found)
            assert reference is not None
            written.append(checkpoints.load(folder, reference, "cpu"))
            self.saved_batches.append(batch)

        savepoints = Savepoints(trainee, write=write, resumed=resumed)

        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            if batch == stop and savepoints.take(batch, rows):
                raise PreemptedError

        loader = PartitionLoader(
            [self.folders[partition]],
            batch_size=self.hyperparams["batch_size"],
            seed=sub_epoch_seed(0, "m00", epoch, partition),
            first=resumed["batch"] if resumed else 0,
            device=self.device,
        )
        counts = [batches(place, self.hyperparams) for _, place in PLACES]
        position = Position(
            epochs=2, sub_epochs=len(PLACES), step=sum(counts[:sub_epoch]), total_steps=sum(counts)
        )
        feed = InstrumentedLoader(
            loader, on_batch, epoch=epoch, sub_epoch=sub_epoch, position=position, savepoints=savepoints
        )
        with suppress(PreemptedError):
            found = train_sub_epoch(
                self.spec,
                trainee,
                feed,
                self.hyperparams,
                seed=0,
                model="m00",
                epoch=epoch,
                partition=partition,
            )
            self.metrics.append(found)
            return trainee
        return written[-1]

    def trainee(self, state: State | None) -> Trainee:
        """Return a new model, restored from a state."""
        trainee = create(self.spec, self.hyperparams, seed=0, model="m00", device=self.device)
        if state is not None:
            restore(trainee, state)
        return trainee

    def evaluate(self, state: State, per_row: PerRowValues | None = None) -> Measured:
        """Return the metrics of the first partition; `per_row` gets the values per row."""
        return evaluate(
            self.spec, self.trainee(state), self.in_order(), self.hyperparams, seed=0, per_row=per_row
        )

    def in_order(self) -> InstrumentedLoader:
        """Return a loader of the first partition, in order."""
        return InstrumentedLoader(PartitionLoader([self.folders[0]], batch_size=7, seed=None))
