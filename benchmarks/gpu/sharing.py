"""Two and four models side by side on one GPU, as workers of a local cluster that share it, against one model alone.

The data lies on all workers, so one model keeps one worker busy, two models two workers, and so on. All runs have the
same partitions and threads. Processes take turns on the GPU, unless the machine runs NVIDIA's MPS.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.local import local_cluster, observed_gpu, tables
from benchmarks.gpu.section import GB, Row, Setting, part
from benchmarks.training import CLASSES, FEATURES, TableETL, run_events
from cerebro import Experiment, StepSpec
from cerebro.contract.events import TaskCommitted

_LAYERS = 3


class Perceptron(StepSpec):
    """Hidden layers of one width, and Adam."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create the network."""
        width = hyperparams["width"]
        hidden = [layer for _ in range(_LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
        return [nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))]

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(models[0](batch[0]), batch[1])

    def configure_optimizers(self, models: Any, hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])


def measure(setting: Setting) -> Iterator[Row]:
    """Fit one, two and four models of a small and of a wide network."""
    workers = 2 if setting.is_small else 4
    networks = [(64, 8)] if setting.is_small else [(64, 8), (4096, 32)]
    with local_cluster(setting, workers) as info:
        locators = tables(setting.folder, {"train": workers * (500 if setting.is_small else 8_000)})
        experiment = Experiment("sharing", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(TableETL(), progress=False)
        _fit(experiment, workers, {"width": [16], "batch_size": [64]})  # starts each worker's processes
        for width, batch_size in networks:
            what = f"{_LAYERS} layers of {width}, batches of {batch_size}"
            space = {"width": [width], "batch_size": [batch_size]}
            yield from part(setting, what, 25, partial(_side_by_side, experiment, what, space, workers))


def _side_by_side(
    experiment: Experiment, what: str, space: Mapping[str, list[int]], workers: int
) -> Iterator[Row]:
    alone: dict[str, float] = {}
    for models in (1, 2, 4):
        if models > workers:
            continue
        with observed_gpu(experiment) as usages:
            result = _fit(experiment, models, space)
        found = _figures(experiment, result.run)
        alone = alone or found
        slowdown = found["compute_s"] / alone["compute_s"]
        throughput = models * alone["makespan_s"] / found["makespan_s"]
        used = [num_bytes for _, num_bytes in usages if num_bytes is not None]
        shares = [share for share, _ in usages if share is not None]
        yield Row(
            what=f"{what}: {models} side by side",
            measured=f"a sub-epoch computes {found['compute_s']:.2f} s, {slowdown:.2f} of one alone; the run trains "
            f"{throughput:.2f} of its rows a second; the GPU is used up to {max(shares, default=0.0):.0%}, with "
            f"{max(used, default=0) / GB:.2f} GB",
            values={
                **found,
                "used_shares": shares,
                "models": models,
                "slowdown": slowdown,
                "throughput": throughput,
            },
            holds=not result.failures() and found["workers"] >= models,
        )


def _fit(experiment: Experiment, models: int, space: Mapping[str, list[int]]) -> Any:
    lrs = [0.0001 * (1 + number) for number in range(models)]
    all_space: dict[str, Any] = {"lr": lrs, **space}
    return experiment.run_fit(
        Perceptron(), all_space, epochs=1, metric="loss", mode="min", seed=1, progress=False
    )


def _figures(experiment: Experiment, run: str) -> dict[str, float]:
    """Return the median seconds of a sub-epoch, the seconds from first to last, and the number of workers."""
    events = run_events(experiment, run)
    committed = [each for each in events if isinstance(each, TaskCommitted) and "/train/" in each.task]
    timings = [each.result.timings for each in committed]
    began = min(
        each.time - timing.save_s - timing.compute_s for each, timing in zip(committed, timings, strict=True)
    )
    return {
        "compute_s": statistics.median(timing.compute_s for timing in timings),
        "makespan_s": committed[-1].time - began,
        "workers": len({each.worker for each in committed}),
    }
