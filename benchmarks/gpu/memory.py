"""Real lacks of GPU memory at each stage of a sub-epoch: messages to the user, and the rest of the run.

Each model needs too much memory at one stage; nothing is allocated only to fill the memory. The GPU memory of a process
is limited, so the rest of the machine is not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.local import local_cluster, tables, worker_log
from benchmarks.gpu.section import Row, Setting, part
from benchmarks.training import CLASSES, FEATURES, TableETL, run_events
from cerebro import Experiment, Limits, Parallelism, StepSpec
from cerebro.contract.events import TaskFailed
from cerebro.techniques import Fused, Offload

_MIB = 1 << 20
_TEXT = 1200
"""Maximum characters of a stored message."""
_BATCH = 256
_GROUP = 4

_STAGES = ("nothing", "create", "forward", "backward", "step", "validation", "blocks")
_FEW_STAGES = ("create", "step", "validation")
"""Stages of a rehearsal."""
_TRAINED_BY = {"nothing": "single", "validation": "single"}
"""Stage -> plan that trains its model, on any device. Other models fail on a CPU."""
_TRAINED_BY_ON_GPU = {**_TRAINED_BY, "step": "offload", "blocks": "offload"}
"""The same with a GPU: `offload` keeps the optimizer, and blocks that do not compute, on the host."""


class Hungry(StepSpec):
    """Needs too much memory at the stage in the hyperparameter `stage`.

    `create`: the parameters. `forward`: the activations. `backward`: the gradient of a large embedding. `step`: Adam's
    state of a smaller one. `validation`: the activations of a whole batch. `blocks`: the state, but no single block.
    `group`: the state of four models, but not of one.

    Args:
        limit_mib: device memory for a process.
    """

    def __init__(self, limit_mib: int, *, is_gpu: bool) -> None:
        self.limit_mib, self.is_gpu = limit_mib, is_gpu

    def initialize_worker(self) -> None:
        """Limit the GPU's memory to the requested size."""
        if self.is_gpu and torch.cuda.is_available():
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(self.limit_mib * _MIB / total)

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create a small network, and large parameters for some stages."""
        stage = hyperparams["stage"]
        side = round((self._numbers(1) / 32) ** 0.5) if stage == "blocks" else 64
        hidden = [
            nn.Sequential(nn.Linear(side, side), nn.ReLU()) for _ in range(9 if stage == "blocks" else 2)
        ]
        models: list[nn.Module] = [
            nn.Sequential(nn.Linear(FEATURES, side), *hidden, nn.Linear(side, CLASSES))
        ]
        if share := {"create": 1.5, "backward": 0.6, "step": 0.22, "group": 0.1}.get(stage):
            models.append(nn.Embedding(self._numbers(share) // 64, 64))
        return models

    def training_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss of a batch."""
        return self._loss(models, batch, is_large=hyperparams["stage"] == "forward")

    def validation_step(self, models: Any, batch: Any, hyperparams: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loss of a batch."""
        return {"loss": self._loss(models, batch, is_large=hyperparams["stage"] == "validation")}

    def configure_optimizers(self, models: Any, hyperparams: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Return Adam for all parameters."""
        parameters = [each for model in models for each in model.parameters()]
        return torch.optim.Adam(parameters, lr=hyperparams["lr"])

    def _loss(self, models: Any, batch: Any, *, is_large: bool) -> torch.Tensor:
        inputs, labels = batch
        logits = models[0](inputs)
        if is_large:  # twice the limit with a whole batch
            copies = self._numbers(2) // (_BATCH * CLASSES)
            logits = (logits[:, None] * torch.ones(copies, 1, device=inputs.device)).mean(1)
        if len(models) > 1:
            logits = logits + models[1](labels).sum(1, keepdim=True)
        return functional.cross_entropy(logits, labels)

    def _numbers(self, share: float) -> int:
        """Return the number of float32 numbers that fill this share of the limit."""
        return int(share * self.limit_mib * _MIB / 4)


def measure(setting: Setting) -> Iterator[Row]:
    """Train a model for each stage in one run, then a group of models whose stack is too large."""
    limit_mib = 1024 if setting.is_gpu else 96
    variables = {} if setting.is_gpu else {"CEREBRO_DEVICE_MEMORY": f"{limit_mib}MiB"}
    with local_cluster(setting, variables=variables) as info:
        locators = tables(setting.folder, {"train": 2 * _BATCH, "valid": _BATCH})
        experiment = Experiment("memory", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(TableETL(), progress=False)
        spec = Hungry(limit_mib, is_gpu=setting.is_gpu)
        yield from part(setting, "stages", 55, partial(_stages, setting, experiment, spec))
        yield from part(setting, "fused group", 25, partial(_group, setting, experiment, spec))
        log = worker_log(setting.folder / "home")
    told = [line for line in log.splitlines() if "memory" in line]
    yield Row(
        what="lines about memory in the worker's log",
        measured=f"{len(told)}",
        values={},
        text="\n".join(told)[-8000:],
    )


def _stages(setting: Setting, experiment: Experiment, spec: Hungry) -> Iterator[Row]:
    offload = [Offload(checkpointing=False, activations=False)] if setting.is_gpu else []
    techniques = ["single", *offload]  # on a CPU, device memory is host memory
    stages = _FEW_STAGES if setting.is_small else _STAGES
    found = _run(setting, experiment, spec, stages, techniques)
    yield found.row("the run of a model for each stage ends")
    expected = _TRAINED_BY_ON_GPU if setting.is_gpu else _TRAINED_BY
    for number, stage in enumerate(stages):
        yield found.model(number, stage, expected.get(stage, ""))


def _group(setting: Setting, experiment: Experiment, spec: Hungry) -> Iterator[Row]:
    found = _run(setting, experiment, spec, ["group"] * _GROUP, [Fused(models=_GROUP)])
    yield found.row(f"the run of {_GROUP} models whose stack is too large ends")
    for number in range(_GROUP):
        yield found.model(number, f"group, model {number}", "single")


class _Run:
    """A run's results: failures and plans of each model."""

    def __init__(self, experiment: Experiment, result: Any, seconds: float) -> None:
        self._seconds = seconds
        self._failures = result.failures()
        self._plans = result.parallel_plans().to_dict("records")
        events = run_events(experiment, result.run)
        self._failed = [each for each in events if isinstance(each, TaskFailed)]

    def row(self, what: str) -> Row:
        """Return the row of the run's duration."""
        return Row(
            what=what,
            measured=f"{self._seconds:.0f} s, {len(self._failed)} failed attempts",
            values={"seconds": self._seconds, "failed": len(self._failed)},
        )

    def model(self, number: int, stage: str, expected: str) -> Row:
        """Return the row of a model: its plan, its lacks of memory, and the text for the user.

        Args:
            expected: technique that trains it; "" if it has to fail for lack of memory.
        """
        model = f"m{number:02d}"
        plans = [each for each in self._plans if each["model"] == model]
        ruled_out = [f"{each['parallel_plan']}: {each['ruled out']}" for each in plans if each["ruled out"]]
        used = [str(each["parallel_plan"]) for each in plans if each["sub_epochs"]]
        failures = [each.failure for each in self._failed if f"/{model}/" in each.task]
        lacks = [each for each in failures if each.kind == "out_of_memory"]
        text = self._failures.get(model, "")
        outcome = f"failed: {text.splitlines()[-1][:160]}" if text else f"trained by {', '.join(used)}"
        kinds = sorted({str(each.memory_kind) for each in lacks})
        is_expected = used[-1:] and used[-1].startswith(expected) if expected else "memory" in text
        return Row(
            what=f"too much memory at: {stage}",
            measured=f"{outcome}; {len(lacks)} lacks of memory {kinds}, {len(failures) - len(lacks)} other failures; "
            f"{len(ruled_out)} plans ruled out",
            values={"peak_bytes": [each.peak_bytes for each in lacks], "plans": used, "lacks": len(lacks)},
            holds=bool(is_expected) and bool(text) is not bool(expected) and len(lacks) == len(failures),
            text="\n".join([text[:_TEXT], *(each[:_TEXT] for each in ruled_out)]),
        )


def _run(
    setting: Setting, experiment: Experiment, spec: Hungry, stages: Sequence[str], techniques: Any
) -> _Run:
    began = time.monotonic()
    result = experiment.run_fit(
        spec,
        [
            {"lr": 0.001 * (1 + number), "batch_size": _BATCH, "stage": stage}
            for number, stage in enumerate(stages)
        ],
        metric="loss",
        mode="min",
        progress=False,
        seed=1,
        limits=Limits(hours=max(10.0, setting.remaining_s() - 5) / 3600),
        parallelism=Parallelism(techniques=techniques, trials="never"),
    )
    return _Run(experiment, result, time.monotonic() - began)
