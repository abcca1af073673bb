"""Real lacks of GPU memory while a model is created, trained and evaluated: user messages and the run's progress."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.local import one_worker, tables
from benchmarks.gpu.section import Row, Setting
from benchmarks.training import CLASSES, FEATURES, TableETL, run_events
from cerebro import Experiment, Limits, Parallelism, SubEpochSpec
from cerebro.contract.events import TaskFailed
from cerebro.techniques import Offload

_STAGES = ("nothing", "create", "train", "test", "state")
_TRAINED = ("nothing", "test")
"""Stages whose models train on any device; `state` needs a GPU with memory separate from the host's."""
_MIB = 1 << 20
_TEXT = 1200
"""Maximum characters of a stored message."""


class Hungry(SubEpochSpec):
    """Takes too much memory at the stage in the hyperparameter `stage`.

    `state` has a model whose state exceeds the device, but whose blocks fit.

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
        """Create a small or a too large network."""
        stage = hyperparams["stage"]
        side = round((self.limit_mib * _MIB / 4 / 32) ** 0.5) if stage == "state" else 64
        hidden = [
            nn.Sequential(nn.Linear(side, side), nn.ReLU()) for _ in range(9 if stage == "state" else 2)
        ]
        network = nn.Sequential(nn.Linear(FEATURES, side), *hidden, nn.Linear(side, CLASSES))
        if stage == "create":
            network.unused = nn.Parameter(torch.ones(self.limit_mib * _MIB * 3 // 8))
        return [network]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Train in the usual loop."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = 0.0
        for inputs, labels in dataloader:
            if hyperparams["stage"] == "train":
                self._take(inputs)
            loss = functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
        return {"loss": total / dataloader.num_rows}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Return the loss of a row."""
        (network,) = models
        total = 0.0
        for inputs, labels in dataloader:
            if hyperparams["stage"] == "test" and inputs.is_cuda:
                self._take(inputs)
            total += float(functional.cross_entropy(network(inputs), labels, reduction="sum"))
        return {"loss": total / dataloader.num_rows}

    def _take(self, inputs: torch.Tensor) -> None:
        """Allocate more memory than any device has; on a CPU more than its limit."""
        size = 2 * torch.cuda.mem_get_info()[1] if inputs.is_cuda else 2 * self.limit_mib * _MIB
        taken = torch.empty(size, dtype=torch.uint8, device=inputs.device)
        taken[:: 1 << 12] = 1


def _print_stacks(home: object) -> None:
    """Print the stacks of a running sub-epoch."""
    for number in range(len(_STAGES)):
        command = [
            sys.executable,
            "-m",
            "cerebro.cli",
            "stacks",
            "memory",
            f"m{number:02d}",
            "--home",
            str(home),
        ]
        subprocess.run(command, check=False)


def measure(setting: Setting) -> Iterator[Row]:
    """Train a model for each stage in one run."""
    limit_mib = 1024 if setting.is_gpu else 600
    variables = {} if setting.is_gpu else {"CEREBRO_DEVICE_MEMORY": f"{limit_mib}MiB"}
    with one_worker(setting, variables) as info:
        locators = tables(setting.folder, {"train": 1024, "valid": 256})
        experiment = Experiment("memory", locators=locators, server=info.kvs, token=info.token())
        experiment.run_etl(TableETL(), progress=False)
        space = [{"lr": 0.001, "batch_size": 256, "stage": stage} for stage in _STAGES]
        began = time.monotonic()
        spec = Hungry(limit_mib, is_gpu=setting.is_gpu)
        late = threading.Timer(max(5.0, setting.remaining_s() - 30), _print_stacks, [info.home])
        late.daemon = True
        late.start()
        hours = max(10.0, setting.remaining_s() - 20) / 3600  # rows arrive even if a model hangs
        result = experiment.run_fit(
            spec,
            space,
            metric="loss",
            mode="min",
            progress=False,
            seed=1,
            limits=Limits(hours=hours),
            parallelism=Parallelism(
                techniques=["single", Offload(checkpointing=False, activations=False)], trials="never"
            ),
        )
        late.cancel()
        seconds = time.monotonic() - began
        events = run_events(experiment, result.run)
        failures, plans = result.failures(), result.parallel_plans().to_dict("records")
    yield Row(
        what="the run of five models ends",
        measured=f"{seconds:.0f} s",
        values={"seconds": seconds},
        holds=True,
    )
    failed = {each.task: each.failure for each in events if isinstance(each, TaskFailed)}
    for number, stage in enumerate(_STAGES):
        model = f"m{number:02d}"
        model_plans = [each for each in plans if each["model"] == model]
        ruled_out = [
            f"{each['parallel_plan']}: {each['ruled out']}" for each in model_plans if each["ruled out"]
        ]
        used = [str(each["parallel_plan"]) for each in model_plans if each["sub_epochs"]]
        lacks = [
            failure
            for task, failure in failed.items()
            if f"/{model}/" in task and failure.kind == "out_of_memory"
        ]
        text = failures.get(model, "")
        is_trained = not text
        yield Row(
            what=f"too much memory at: {stage}",
            measured=f"{'trained by ' + ', '.join(used) if is_trained else 'failed'}; {len(lacks)} lacks of memory of "
            f"{sorted({str(each.memory_kind) for each in lacks})}; {len(ruled_out)} plans ruled out",
            values={"peak_bytes": [each.peak_bytes for each in lacks]},
            holds=is_trained == (stage in _TRAINED or (stage == "state" and setting.is_gpu)),
            text="\n".join([text[:_TEXT], *(each[:_TEXT] for each in ruled_out)]),
        )
