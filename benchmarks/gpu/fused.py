"""Several models as one stack: time of a batch for each model, for 1 to 64 models of three networks; then whole fits.

Models train with the functions that workers use for fused groups, and separately. Both read the same batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.fused import Table
from benchmarks.gpu.local import local_cluster, tables
from benchmarks.gpu.section import GB, Row, Setting, part
from benchmarks.training import TableETL
from cerebro import Experiment, Parallelism, StepSpec
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.mapped import MappedRows
from cerebro.data.shards import write_rows
from cerebro.errors import PreemptedError
from cerebro.techniques import Fused
from cerebro.worker.training.fused.group import train_group
from cerebro.worker.training.fused.member import Member, MemberSavepoints, SharedBatches
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import Measured
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, train_sub_epoch

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_WARM = 5
"""Batches before the measured ones."""
_TOLERANCE = 1e-3
"""Largest relative difference of a loss in a stack and alone."""


@dataclass(frozen=True, kw_only=True)
class _Network:
    """A network with its rows."""

    label: str
    shape: tuple[int, ...]
    classes: int
    batch_size: int


_NETWORKS = (
    _Network(label="table 40-64-32-2", shape=(40,), classes=2, batch_size=32),
    _Network(label="convolutions of 32 channels on 8x8", shape=(1, 8, 8), classes=10, batch_size=32),
    _Network(label="MLP 784-1024-512-10", shape=(784,), classes=10, batch_size=128),
)


class Classifier(StepSpec):
    """One of the networks, with Adam."""

    def __init__(self, network: _Network) -> None:
        self.network = network

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create the network."""
        (width, *sides), classes = self.network.shape, self.network.classes
        if sides:
            return [
                nn.Sequential(
                    nn.Conv2d(width, 32, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(32, 32, 3, padding=1),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                    nn.Flatten(),
                    nn.Linear(8 * math.prod(sides), classes),
                )
            ]
        hidden = (64, 32) if width < 100 else (1024, 512)
        return [
            nn.Sequential(
                nn.Linear(width, hidden[0]), nn.ReLU(), nn.Linear(*hidden), nn.ReLU(), nn.Linear(hidden[1], classes)
            )
        ]  # fmt: skip

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(models[0](batch[0]), batch[1])

    def configure_optimizers(self, models: Any, hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """Seconds of a batch of all models, the first model's loss, and peak memory."""

    batch_s: float
    loss: float
    peak_bytes: int


def measure(setting: Setting) -> Iterator[Row]:
    """Measure stacks of each network, and a fit of the product with and without stacks."""
    yield from part(setting, "a fit with stacks", 55, partial(_fits, setting))
    for network in _NETWORKS:
        yield from part(setting, network.label, 30, partial(_stacks, setting, network))


# --- stacks ---------------------------------------------------------------------------------------


def _stacks(setting: Setting, network: _Network) -> Iterator[Row]:
    batches = 10 if setting.is_small else 60
    folder = setting.folder / f"rows{network.shape[0]}"
    draw = np.random.default_rng(0)
    pictures = draw.normal(size=(batches * network.batch_size, *network.shape)).astype(np.float32)
    rows = [(each, number % network.classes) for number, each in enumerate(pictures)]
    write_rows(folder, rows, Source(fingerprint="gpu", metadata="xxh3_64:0"))
    mapped = MappedRows.open([folder])
    _separate(setting, network, mapped)  # starts CUDA and its libraries
    separate = _separate(setting, network, mapped)
    yield Row(
        what=f"{network.label}, batches of {network.batch_size}: one model, separate training",
        measured=f"{1e3 * separate.batch_s:.2f} ms a batch",
        values=vars(separate),
    )
    for size in (1, 4) if setting.is_small else _SIZES:
        what = f"{network.label}: stack of {size}"
        yield from part(setting, what, 10, partial(_size, setting, network, mapped, size, separate))


def _size(
    setting: Setting, network: _Network, rows: MappedRows, size: int, separate: _Trained
) -> Iterator[Row]:
    found = _stack(setting, network, rows, size)
    gain = separate.batch_s * size / found.batch_s
    difference = abs(found.loss / separate.loss - 1)
    yield Row(
        what=f"{network.label}: stack of {size}",
        measured=f"{1e3 * found.batch_s:.2f} ms a batch, {1e3 * found.batch_s / size:.3f} ms for each model, "
        f"{gain:.1f} times as fast as separate training; peak {found.peak_bytes / GB:.2f} GB; "
        f"loss differs by {difference:.0e}",
        values={**vars(found), "models": size, "gain": gain, "difference": difference},
        holds=difference <= _TOLERANCE,
    )


class _Clock:
    """Measures the batches after the first ones."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._began = 0.0

    def begin(self, batch: int) -> None:
        """Note that the batch with this number, from 0, begins."""
        if batch == _WARM:
            self._setting.synchronize()
            self._began = time.perf_counter()

    def batch_s(self, batches: int) -> float:
        """Return the seconds of a batch, after the last of these."""
        self._setting.synchronize()
        return (time.perf_counter() - self._began) / (batches - _WARM)


def _hyperparams(network: _Network, number: int) -> dict[str, Any]:
    return {"lr": 0.001 / (1 + number), "batch_size": network.batch_size}


def _loader(setting: Setting, network: _Network, rows: MappedRows) -> PartitionLoader:
    if setting.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    return PartitionLoader(rows, batch_size=network.batch_size, seed=1, device=setting.device)


def _peak_bytes(setting: Setting) -> int:
    return torch.cuda.max_memory_allocated() if setting.is_gpu else 0


def _separate(setting: Setting, network: _Network, rows: MappedRows) -> _Trained:
    spec, hyperparams = Classifier(network), _hyperparams(network, 0)
    trainee = create(spec, hyperparams, seed=1, model="m00", device=setting.device)
    loader, clock = _loader(setting, network, rows), _Clock(setting)
    feed = InstrumentedLoader(loader, lambda rows, batch, values: clock.begin(batch))
    metrics = train_sub_epoch(spec, trainee, feed, hyperparams, seed=1, model="m00", epoch=1, partition=0)
    return _Trained(batch_s=clock.batch_s(len(loader)), loss=_loss(metrics), peak_bytes=_peak_bytes(setting))


def _stack(setting: Setting, network: _Network, rows: MappedRows, size: int) -> _Trained:
    spec, loader, clock = Classifier(network), _loader(setting, network, rows), _Clock(setting)
    shared, members = SharedBatches(loader), []
    for number in range(size):
        name, hyperparams = f"m{number:02d}", _hyperparams(network, number)
        trainee = create(spec, hyperparams, seed=1, model=name, device=setting.device)
        savepoints = MemberSavepoints(trainee)
        members.append(
            Member(
                name=name,
                trainee=trainee,
                feed=InstrumentedLoader(shared.for_member(), savepoints=savepoints),
                savepoints=savepoints,
                hyperparams=hyperparams,
                seed=sub_epoch_seed(1, name, 1, 0),
                device=setting.device,
            )
        )
    first, losses = members[0], {}

    def on_end(member: Member, found: Measured | Exception | PreemptedError) -> None:
        if isinstance(found, BaseException):
            raise found
        losses[member] = _loss(found)

    batches = count()

    def before_batch() -> bool:
        clock.begin(next(batches))
        return False

    train_group(spec, members, on_end, where="a benchmark", before_batch=before_batch)
    return _Trained(batch_s=clock.batch_s(len(loader)), loss=losses[first], peak_bytes=_peak_bytes(setting))


def _loss(metrics: Measured) -> float:
    loss = metrics["loss"]
    assert isinstance(loss, float)
    return loss


# --- fits -----------------------------------------------------------------------------------------


def _fits(setting: Setting) -> Iterator[Row]:
    """Fit networks for a table on a cluster with one worker: one model at a time, then as stacks."""
    models, rows = (4, 1_000) if setting.is_small else (16, 12_000)
    space = {"lr": [0.0002 * (1 + number) for number in range(models)], "batch_size": [32]}
    with local_cluster(setting) as info:
        locators = tables(setting.folder, {"train": rows})
        experiment = Experiment("fused", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(TableETL(), progress=False)
        found: dict[str, tuple[float, list[float]]] = {}
        for technique in ("single", Fused(models=models)):
            began = time.monotonic()
            result = experiment.run_fit(
                Table(),
                space,
                epochs=1,
                metric="loss",
                mode="min",
                seed=1,
                parallelism=Parallelism(techniques=[technique], trials="never"),
                progress=False,
            )
            label = technique if isinstance(technique, str) else technique.name
            losses = [float(each) for each in result.leaderboard().sort_values("model")["loss"]]
            found[label] = time.monotonic() - began, losses
            sub_epochs = result.sub_epochs()
            plans = sorted({str(each) for each in sub_epochs["parallel_plan"]})
    (single_s, single), (fused_s, fused) = found["single"], found["fused"]
    difference = max(abs(one / other - 1) for one, other in zip(fused, single, strict=True))
    yield Row(
        what=f"a fit of {models} models on one worker, {rows:,} rows: one at a time over stacks",
        measured=f"{single_s:.1f} s and {fused_s:.1f} s: {single_s / fused_s:.1f} times; plans of the second fit: "
        f"{', '.join(plans)}; losses differ by up to {difference:.0e}",
        values={"single_s": single_s, "fused_s": fused_s, "difference": difference, "plans": plans},
        holds=difference <= _TOLERANCE and all(each.startswith("fused") for each in plans),
    )
