"""Memory of a real GPU: a lack of memory is reported and survived at each stage; the driver's figures are right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.memory import Hungry
from benchmarks.training import CLASSES, FEATURES
from cerebro.contract.tasks.bodies import EvaluateTask, FusedMember, Position, TrainTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.data.shards import write_rows
from cerebro.runtime.usage.gpus import Gpus
from cerebro.runtime.volumes import Volumes
from cerebro.worker.child.task_loop import failure_of
from tests.data.rows import SOURCE
from tests.state.stories import DATASET, SHA
from tests.worker.training.fused.test_handler import worker
from tests.worker.training.handlers import handler_of, volumes_in

pytestmark = pytest.mark.gpu

LIMIT_MIB, ROWS = 512, 256


@pytest.fixture
def spec(gpu: torch.device) -> Iterator[Hungry]:
    """A spec that needs too much memory at a stage, with a limit of memory until the test ends."""
    torch.cuda.empty_cache()
    spec = Hungry(LIMIT_MIB, is_gpu=True)
    spec.initialize_worker()
    yield spec
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    """Volumes with a partition for training and one for validation."""
    found = volumes_in(tmp_path)
    inputs = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    for split in ("train", "valid"):
        rows = [(each, number % CLASSES) for number, each in enumerate(inputs)]
        write_rows(found.partition(DATASET, split, 0), rows, SOURCE)
    return found


def fields(stage: str, model: str = "m00") -> dict[str, Any]:
    """Return the fields of all tasks."""
    return {
        "experiment": "one", "run": "fit-1", "model": model, "code": SHA, "dataset": DATASET, "seed": 0, "epoch": 1,
        "hyperparams": {"batch_size": ROWS, "lr": 0.001, "stage": stage}, "hang_timeout_s": 60.0,
    }  # fmt: skip


def training(stage: str, model: str = "m00") -> TrainTask:
    """Return the first sub-epoch of a model."""
    return TrainTask(
        key=f"fit-1/train/{model}/e1/p0", **fields(stage, model), partition=0, sub_epoch=0,
        position=Position(total_steps=1), checkpoint=None, has_shared_order=True,
    )  # fmt: skip


def require_lack_of_device_memory(error: BaseException) -> None:
    """Require a failure that names the GPU's memory and the needed bytes."""
    failure = failure_of(error)
    assert (failure.kind, failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "device")
    assert "memory" in failure.message.lower()
    assert failure.peak_bytes
    assert failure.peak_bytes > 0.5 * LIMIT_MIB * 2**20


@pytest.mark.parametrize("stage", ["create", "forward", "backward", "step"])
def test_a_lack_of_memory_is_reported_and_the_next_model_trains(
    stage: str, spec: Hungry, volumes: Volumes
) -> None:
    """At each stage of a sub-epoch, in the same process."""
    with handler_of(spec, volumes) as handler:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            handler.handle(training(stage), 1)
        require_lack_of_device_memory(caught.value)
        del caught
        handler.free_memory()
        assert handler.handle(training("nothing"), 2).rows == ROWS


def test_an_evaluation_uses_smaller_batches(spec: Hungry, volumes: Volumes) -> None:
    """Its metrics stay the same up to rounding."""
    found = []
    for stage in ("nothing", "validation"):
        with handler_of(spec, volumes) as handler:
            checkpoint = handler.handle(training(stage), 1).checkpoint
            assert checkpoint is not None
            task = EvaluateTask(
                key="fit-1/valid/m00/e1", kind="valid", split="valid", partitions=(0,), checkpoint=checkpoint,
                **fields(stage),
            )  # fmt: skip
            found.append(handler.handle(task, 1).metrics["loss"])
            handler.free_memory()
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_stack_that_is_too_large_ends_as_a_lack_of_memory(spec: Hungry, volumes: Volumes) -> None:
    """No member has ended, so the controller trains them alone; one alone fits."""
    bodies = [training("group", f"m{number:02d}") for number in range(4)]
    with worker(volumes, spec) as one:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            one.train(*(FusedMember(task=body.key, attempt=1, body=body) for body in bodies))
        assert one.ends == {}
        require_lack_of_device_memory(caught.value)
        del caught
        one.handler.free_memory()
        assert one.handler.handle(bodies[0], 2).rows == ROWS


def test_the_figures_of_the_driver_are_those_of_torch(gpu: torch.device) -> None:
    """Name, identity, and total and used memory."""
    held = torch.ones(256 << 20, dtype=torch.uint8, device=gpu)
    gpus, properties = Gpus(None), torch.cuda.get_device_properties(gpu)
    number = [each.uuid for each in gpus.found].index(f"GPU-{properties.uuid}")
    usage = gpus.measure()[number]
    free, total = torch.cuda.mem_get_info(gpu)
    assert usage.name == properties.name
    assert usage.memory_total_bytes == pytest.approx(total, rel=0.02)
    assert usage.memory_bytes == pytest.approx(total - free, abs=1e9)
    assert usage.memory_bytes >= held.numel()
