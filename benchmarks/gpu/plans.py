"""Parallel plans of one device: time of a batch, peak memory, and the same training up to rounding.

Each plan trains some batches of one GPT as a worker does, and a trial of the product measures and verifies it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.gpu.section import GB, Row, Setting, part
from cerebro import StepSpec
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import TrialTask
from cerebro.contract.trials import DeviceKind
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.mapped import MappedRows
from cerebro.data.shards import write_rows
from cerebro.techniques import resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.sub_epoch import create, train_sub_epoch
from examples.gpt import SMALL, Gpt, GptTraining, Shape
from trial_runner.trial import Trial

_MEDIUM = Shape(layers=24, width=1024, heads=16, context=512, vocabulary=8192, texts=64)
_TINY = replace(SMALL, layers=2, texts=40)
_BATCH = 8
_WARM = 2
_EXACT, _LOW = 1e-4, 0.05
"""Largest relative differences of the loss: with the same precision, and with a lower one."""


class GptSteps(StepSpec):
    """The same training with Cerebro's loop; `precision` and `compile` are hyperparameters."""

    clip_norm = 1.0

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create the network."""
        return [Gpt(self.shape)]

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        tokens, following = batch
        return functional.cross_entropy(models[0](tokens).flatten(0, 1), following.flatten())

    def configure_optimizers(self, models: Any, hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(models[0].parameters(), lr=hyperparams["lr"])


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A plan with its parameters, or Cerebro's loop with its options."""

    label: str
    technique: str = "single"
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] | None = None
    tolerance: float = _EXACT
    uses_less: bool = False
    """True if its peak memory must be below the single device's."""


_PLANS = (
    _Plan(label="single"),
    _Plan(label="checkpointing", technique="checkpointing", uses_less=True),
    _Plan(label="offload", technique="offload", uses_less=True),
    _Plan(
        label="offload, checkpointing, activations",
        technique="offload",
        params={"checkpointing": True, "activations": True},
        uses_less=True,
    ),
    _Plan(
        label="offload, bf16",
        technique="offload",
        params={"precision": "bf16"},
        tolerance=_LOW,
        uses_less=True,
    ),
    _Plan(
        label="offload, float8",
        technique="offload",
        params={"precision": "float8"},
        tolerance=_LOW,
        uses_less=True,
    ),
    _Plan(label="StepSpec", options={}),
    _Plan(label="StepSpec, bf16", options={"precision": "bf16"}, tolerance=_LOW),
    _Plan(label="StepSpec, fp16", options={"precision": "fp16"}, tolerance=_LOW),
    _Plan(label="StepSpec, compile", options={"compile": True}),
    _Plan(label="StepSpec, compile, bf16", options={"compile": True, "precision": "bf16"}, tolerance=_LOW),
)


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """What some batches by a plan showed."""

    loss: float
    batch_s: float
    first_s: float
    peak_bytes: int


def measure(setting: Setting) -> Iterator[Row]:
    """Train by each plan and compare with `single`; then trials of techniques, with a smaller network."""
    shape = _TINY if setting.is_small else _MEDIUM
    rows = _rows(setting, shape)
    singles: list[_Trained] = []
    for plan in _PLANS if setting.is_gpu else _on_cpu():
        yield from part(setting, plan.label, 20, partial(_plan_rows, setting, plan, shape, rows, singles))
    rows = _rows(setting, _TINY)
    for plan in _PLANS[: 2 if setting.is_small else None]:
        if plan.options is None and plan.params.get("precision") != "float8":
            yield from part(
                setting, f"trial of {plan.label}", 15, partial(_trial, setting, plan, _TINY, rows)
            )


def _on_cpu() -> Iterator[_Plan]:
    """Yield the plans for a CPU: float8 emulated, and nothing compiled, which takes minutes."""
    for plan in _PLANS:
        if plan.params.get("precision") == "float8":
            params = {"precision": "float8-emulated"}
            yield replace(plan, label=f"{plan.label}-emulated", params=params)
        elif "compile" not in (plan.options or {}):
            yield plan


def _plan_rows(
    setting: Setting, plan: _Plan, shape: Shape, rows: MappedRows, singles: list[_Trained]
) -> Iterator[Row]:
    found = _train(setting, plan, shape, rows)
    if plan.label == "single":
        singles.append(found)
    yield _row(plan, found, singles[0], setting)


def _rows(setting: Setting, shape: Shape) -> MappedRows:
    """Write texts for a network of this shape."""
    partition = setting.folder / f"partition-{shape.width}"
    if not partition.exists():
        _write(partition, shape)
    return MappedRows.open([partition])


def _write(partition: Path, shape: Shape) -> None:
    """Write texts; each token decides which four tokens may follow."""
    generator = np.random.default_rng(0)
    chain = generator.integers(shape.vocabulary, size=(shape.vocabulary, 4))
    texts = []
    for _ in range(shape.texts):
        tokens = np.empty(shape.context + 1, np.int64)
        tokens[0] = generator.integers(shape.vocabulary)
        for position, choice in enumerate(generator.integers(4, size=shape.context)):
            tokens[position + 1] = chain[tokens[position], choice]
        texts.append((tokens[:-1], tokens[1:]))
    write_rows(partition, texts, Source(fingerprint="gpu", metadata="xxh3_64:0"))


def _parallel_plan(plan: _Plan) -> ParallelPlan:
    return ParallelPlan.model_validate(
        {"technique": plan.technique, "size": 1, "processes": "one", "params": dict(plan.params)}
    )


def _train(setting: Setting, plan: _Plan, shape: Shape, rows: MappedRows) -> _Trained:
    technique = resolve(_parallel_plan(plan))
    spec = GptTraining(shape) if plan.options is None else GptSteps(shape)
    hyperparams = {"lr": 1e-4, "batch_size": _BATCH, **(plan.options or {})}
    group = Alone((str(setting.device),))
    times: list[float] = []

    def on_batch(*_: Any) -> None:
        setting.synchronize()
        times.append(time.perf_counter())

    try:
        if setting.is_gpu:
            torch.cuda.reset_peak_memory_stats()
        device = torch.device(technique.made_on(group, plan.params))
        trainee = create(spec, hyperparams, seed=1, model="m00", device=device)
        if plan.technique != "single":
            trainee = prepare(spec, trainee, technique, plan.params, group)
        loader = PartitionLoader(rows, batch_size=_BATCH, seed=1, device=group.device)
        feed = InstrumentedLoader(loader, on_batch)
        metrics = train_sub_epoch(spec, trainee, feed, hyperparams, seed=1, model="m00", epoch=1, partition=0)
        on_batch()
    finally:
        group.leave()
    durations = [after - before for before, after in pairwise(times)]
    peak = torch.cuda.max_memory_allocated() if setting.is_gpu else 0
    loss = metrics["loss"]
    assert isinstance(loss, float)
    return _Trained(
        loss=loss,
        batch_s=sorted(durations[_WARM:])[len(durations[_WARM:]) // 2],
        first_s=durations[0],
        peak_bytes=peak,
    )


def _row(plan: _Plan, found: _Trained, single: _Trained, setting: Setting) -> Row:
    difference = abs(found.loss / single.loss - 1)
    is_less = not plan.uses_less or not setting.is_gpu or found.peak_bytes < single.peak_bytes
    return Row(
        what=plan.label,
        measured=f"{1e3 * found.batch_s:.0f} ms a batch ({found.batch_s / single.batch_s:.2f} of single), first "
        f"{found.first_s:.1f} s, peak {found.peak_bytes / GB:.2f} GB; loss differs by {difference:.1e}",
        values={**vars(found), "difference": difference},
        holds=math.isfinite(found.loss) and difference <= plan.tolerance and is_less,
    )


def _trial(setting: Setting, plan: _Plan, shape: Shape, rows: MappedRows) -> Iterator[Row]:
    """Run the product's trial of a plan: it verifies the gradient and measures the same."""
    technique = resolve(_parallel_plan(plan))
    body = TrialTask(
        key="fit-1/trial/g00/w",
        experiment="gpu",
        run="fit-1",
        model="m00",
        hyperparams={"lr": 1e-4, "batch_size": _BATCH},
        code="0" * 64,
        dataset="d",
        seed=1,
        hang_timeout_s=60.0,
        group="g00",
        id="w",
        parallel_plan=_parallel_plan(plan),
        device=DeviceKind(kind="gpu" if setting.is_gpu else "cpu", name="device"),
        partition=0,
    )
    group = Alone((str(setting.device),))
    try:
        outcome = Trial(GptTraining(shape), body, technique, group, rows).run(setting.folder, "trial.pt")
    finally:
        group.leave()
    is_exact = "precision" not in plan.params
    seconds = {
        name: getattr(outcome, name) or math.nan for name in ("batch_s", "save_s", "load_s", "seconds")
    }
    verdict = "verified" if outcome.is_verified else outcome.reason or outcome.unverified
    yield Row(
        what=f"trial of {plan.label}",
        measured=f"{verdict}; {1e3 * seconds['batch_s']:.0f} ms a batch, {(outcome.device_bytes or 0) / GB:.2f} GB, "
        f"save {seconds['save_s']:.2f} s, load {seconds['load_s']:.2f} s; the trial took {seconds['seconds']:.1f} s",
        values={**seconds, "device_bytes": outcome.device_bytes, "error": outcome.error},
        holds=not outcome.reason and (outcome.is_verified or not is_exact),
    )
