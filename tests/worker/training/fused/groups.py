"""Models that train over several sub-epochs, in stacks or alone; each sub-epoch restores them from files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cerebro import StepSpec
from cerebro.contract.tasks.bodies import Position
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.errors import PreemptedError
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.fused.group import train_group
from cerebro.worker.training.fused.member import Member, MemberSavepoints, SharedBatches
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

CPU = torch.device("cpu")
ROWS = (46, 43)
"""Rows of each partition."""
PLACES = ((1, 0), (1, 1), (2, 1), (2, 0))
"""(epoch, partition) of each sub-epoch."""
BASE: dict[str, Any] = {"lr": 0.01, "batch_size": 8, "network": "mlp"}


class Recurrent(nn.Module):
    """A recurrent network over the rows of an 8 x 8 picture."""

    def __init__(self, kind: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.layer = kind(8, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(pictures[:, 0])[0].mean(1))
        return logits


class Attention(nn.Module):
    """A transformer encoder over the rows of an 8 x 8 picture."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(pictures[:, 0]).mean(1))
        return logits


def network(kind: str) -> nn.Module:
    """Return a network for pictures of 1 x 8 x 8."""
    if kind == "transformer":
        return Attention()
    if kind == "lstm":
        return Recurrent(num_layers=2, dropout=0.3, bidirectional=True)
    if kind in ("gru", "rnn"):
        return Recurrent(nn.GRU if kind == "gru" else nn.RNN)
    if kind == "cnn":
        convolutions = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2)
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))


_OPTIMIZERS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


def optimizer(models: Sequence[nn.Module], hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Return the optimizer that the hyperparameters name, with two groups of parameters."""
    parameters = list(models[0].parameters())
    groups = [{"params": parameters[:1], "weight_decay": 0.0}, {"params": parameters[1:]}]
    kind, options = _OPTIMIZERS[hyperparams.get("optimizer", "adamw")]
    if kind is torch.optim.SGD:
        options = {"momentum": hyperparams.get("momentum", 0.9), **options}
    made: torch.optim.Optimizer = kind(
        groups, lr=hyperparams["lr"], weight_decay=hyperparams.get("weight_decay", 0.01), **options
    )
    return made


class Steps(StepSpec):
    """The steps of a classifier; the network, the optimizer and the schedule are hyperparameters."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        model = network(hyperparams["network"])
        return [model.double() if hyperparams.get("double") else model]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        pictures, labels = batch
        logits = models[0](pictures.double() if hyperparams.get("double") else pictures)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        made = optimizer(models, hyperparams)
        if not hyperparams.get("schedule"):
            return made
        return made, torch.optim.lr_scheduler.OneCycleLR(
            made, hyperparams["lr"], total_steps=self.total_steps
        )


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


@dataclass
class Model:
    """A model and its latest state; `savepoint` is the state of an interrupted sub-epoch."""

    name: str
    hyperparams: dict[str, Any]
    state: State | None = None
    savepoint: State | None = None
    metrics: list[Measured] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: Exception | None = None


class Training:
    """Trains models sub-epoch by sub-epoch.

    Args:
        spec: the spec of all models.
        folders: partitions.
    """

    def __init__(
        self,
        spec: StepSpec,
        folders: Sequence[Path],
        hyperparams: Sequence[Mapping[str, Any]],
        device: torch.device = CPU,
    ) -> None:
        self.spec, self.folders, self.device = spec, folders, device
        self.models = [Model(f"m{n:02}", {**BASE, **each}) for n, each in enumerate(hyperparams)]
        self.resumed: list[int] = []
        """First batch of each resumed sub-epoch."""

    def stacks(self, *stacks: Sequence[int], sub_epochs: int = len(PLACES)) -> Training:
        """Train all sub-epochs, in stacks of these models."""
        for sub_epoch in range(sub_epochs):
            for stack in stacks:
                self.stack(sub_epoch, stack)
        return self

    def alone(self, sub_epochs: int = len(PLACES)) -> Training:
        """Train all sub-epochs, each model in separate training."""
        for sub_epoch in range(sub_epochs):
            for number in range(len(self.models)):
                self.separate(sub_epoch, number)
        return self

    def stack(self, sub_epoch: int, numbers: Sequence[int], stops: Mapping[int, int] | None = None) -> None:
        """Train a sub-epoch of models as a stack.

        Args:
            stops: model -> batch before which it takes a savepoint and leaves.
        """
        epoch, partition = PLACES[sub_epoch]
        firsts = {self._first(self.models[number]) for number in numbers}
        assert len(firsts) == 1
        shared = SharedBatches(self._loader(sub_epoch, *firsts))
        members = {
            self._member(sub_epoch, self.models[number], shared, (stops or {}).get(number)): self.models[
                number
            ]
            for number in numbers
        }

        def on_end(member: Member, found: Measured | Exception | PreemptedError) -> None:
            model = members[member]
            if isinstance(found, PreemptedError):
                assert model.savepoint is not None
            elif isinstance(found, Exception):
                model.error = found
            else:
                self._finish(model, member.trainee, found)

        train_group(self.spec, list(members), on_end, where=f"epoch {epoch}, partition {partition}")

    def separate(self, sub_epoch: int, number: int, stop: int | None = None) -> None:
        """Train a sub-epoch of one model in separate training."""
        epoch, partition = PLACES[sub_epoch]
        model = self.models[number]
        trainee, savepoints = self._restored(model, Savepoints)
        loader = self._loader(sub_epoch, self._first(model))
        feed = self._feed(sub_epoch, model, loader, savepoints, stop)
        try:
            metrics = train_sub_epoch(
                self.spec,
                trainee,
                feed,
                model.hyperparams,
                seed=0,
                model=model.name,
                epoch=epoch,
                partition=partition,
            )
        except PreemptedError:
            assert model.savepoint is not None
        else:
            self._finish(model, trainee, metrics)

    def _finish(self, model: Model, trainee: Trainee, metrics: Measured) -> None:
        model.state, model.savepoint = saved(trainee), None
        model.metrics.append(metrics)
        model.warnings += trainee.warnings

    def _member(self, sub_epoch: int, model: Model, shared: SharedBatches, stop: int | None) -> Member:
        epoch, partition = PLACES[sub_epoch]
        trainee, savepoints = self._restored(model, MemberSavepoints)
        feed = self._feed(sub_epoch, model, shared.for_member(), savepoints, stop)
        return Member(
            name=model.name,
            trainee=trainee,
            feed=feed,
            savepoints=savepoints,
            hyperparams=model.hyperparams,
            seed=sub_epoch_seed(0, model.name, epoch, partition),
            device=self.device,
        )

    def _restored(self, model: Model, kind: Any) -> tuple[Trainee, Any]:
        trainee = create(self.spec, model.hyperparams, seed=0, model=model.name, device=self.device)
        start = model.savepoint or model.state
        if start is not None:
            restore(trainee, start)
        resumed = None if model.savepoint is None else model.savepoint["savepoint"]
        if resumed is not None:
            self.resumed.append(resumed["batch"])

        def write(state: State, batch: int, rows: int) -> None:
            model.savepoint = saved(trainee, state)

        return trainee, kind(trainee, write=write, resumed=resumed)

    @staticmethod
    def _first(model: Model) -> int:
        return model.savepoint["savepoint"]["batch"] if model.savepoint else 0

    def _loader(self, sub_epoch: int, first: int) -> PartitionLoader:
        epoch, partition = PLACES[sub_epoch]
        return PartitionLoader(
            [self.folders[partition]],
            batch_size=BASE["batch_size"],
            seed=sub_epoch_seed(0, "all", epoch, partition),
            first=first,
            device=self.device,
        )

    def _feed(
        self, sub_epoch: int, model: Model, loader: PartitionLoader, savepoints: Savepoints, stop: int | None
    ) -> InstrumentedLoader:
        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            if batch == stop:
                assert savepoints.take(batch, rows)
                raise PreemptedError(f"{model.name} stops")

        counts = [-(-ROWS[place] // BASE["batch_size"]) for _, place in PLACES]
        position = Position(
            epochs=2, sub_epochs=len(PLACES), step=sum(counts[:sub_epoch]), total_steps=sum(counts)
        )
        return InstrumentedLoader(
            loader,
            on_batch,
            epoch=PLACES[sub_epoch][0],
            sub_epoch=sub_epoch,
            position=position,
            savepoints=savepoints,
        )


def saved(trainee: Trainee, state: State | None = None) -> State:
    """Return a state as read from its file."""
    with tempfile.TemporaryDirectory() as folder:
        reference = trainee.save(Path(folder), "state.pt", state)
        assert reference is not None
        return checkpoints.load(Path(folder), reference, "cpu")
