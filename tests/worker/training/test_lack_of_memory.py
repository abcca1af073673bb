"""The handler reports lack of memory as such, and retries evaluations with smaller batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import EvaluateTask, Position, PredictTask, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import NotApplicableError, StorageFullError
from cerebro.spec import Checkpoint, DataLoader, Hints, SubEpochSpec
from cerebro.techniques import DeviceSet, Group, ModelFacts, Params, Technique
from cerebro.techniques.ranks import Alone
from cerebro.worker.child.task_loop import failure_of
from cerebro.worker.training.sub_epoch import create
from model_hopper.memory_fallback import fallback_settings
from model_hopper.rank_setup import RankSetup
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import ROWS, Linear, handler_of, learn_from, volumes_in, write_split

CPU = torch.device("cpu")
NO_ROOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Failing(Technique):
    """Fails to prepare a model with the test's error."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        return ""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), FailureKind.OUT_OF_MEMORY),
        (RuntimeError("Resource temporarily unavailable"), FailureKind.OUT_OF_MEMORY),
        (NO_ROOM, FailureKind.OUT_OF_MEMORY),
        (RuntimeError("it cannot be split"), FailureKind.NOT_APPLICABLE),
        (NotApplicableError("it cannot be split"), FailureKind.NOT_APPLICABLE),
    ],
)
def test_errors_of_a_technique_keep_their_kind(error: Exception, kind: FailureKind) -> None:
    """Lack of memory does not mean that the technique is unsupported."""
    spec = Linear()
    trainee = create(spec, {"batch_size": 4}, seed=0, model="m00", device=CPU)
    placed = RankSetup(ParallelPlan(technique="failing"), Failing(error), Alone(("cpu",)))
    with pytest.raises(Exception) as caught:
        placed.prepare_model(spec, trainee)
    assert failure_of(caught.value).kind is kind


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [("279.60 GiB", round(279.6 * 2**30)), ("2.00 MiB", 2 << 20), ("512 bytes", 512), ("", 0)],
)
def test_a_request_that_a_gpu_refuses_counts_as_needed(size: str, num_bytes: int) -> None:
    """The peak plus the request is the size that a larger GPU needs."""
    error = torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size}. GPU 0 has 139.80 GiB")
    error.peak_gpu_bytes = 1 << 20  # type: ignore[attr-defined]  # as a worker's handler notes it
    assert failure_of(error).peak_bytes == (1 << 20) + num_bytes


class Hungry(Linear):
    """Needs memory per row; on a small device only the model fits."""

    most, fits_device = 3, True

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
        for inputs, labels in dataloader:
            learn_from((models[0](inputs)[:, 0] - labels).square().mean(), optimizer)
        return {"loss": 0.0}

    def test(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        total = sum(float(each.sum()) for each in self.predict(models, checkpoint, dataloader, hyperparams))
        return {"mean": total / dataloader.num_rows}

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Iterator[torch.Tensor]:
        for inputs, _ in dataloader:
            if len(inputs) > self.most or not (self.fits_device or inputs.device.type == "cpu"):
                raise NO_ROOM
            yield models[0](inputs)[:, 0]


def trained(folder: Path, spec: SubEpochSpec) -> CheckpointRef:
    """Train a model's first sub-epoch."""
    task = TrainTask(
        key="fit-1/train/m00/e1/p0",
        **common(),
        epoch=1,
        partition=0,
        sub_epoch=0,
        position=Position(),
        checkpoint=None,
    )
    write_split(volumes_in(folder), "train", 1)
    write_split(volumes_in(folder), "valid", 1)
    with handler_of(spec, volumes_in(folder)) as handler:
        checkpoint = handler.handle(task, 1).checkpoint
    assert checkpoint is not None
    return checkpoint


def common() -> dict[str, Any]:
    """Return the fields of all tasks."""
    model = {"experiment": "one", "run": "fit-1", "model": "m00", "hyperparams": {"batch_size": 40}}
    return {**model, "code": SHA, "dataset": DATASET, "seed": 0, "hang_timeout_s": 60.0}


def validation(checkpoint: CheckpointRef) -> EvaluateTask:
    """Return a validation of the model."""
    which: dict[str, Any] = {"kind": "valid", "split": "valid", "partitions": (0,)}
    return EvaluateTask(key="fit-1/valid/m00/e1", **common(), **which, epoch=1, checkpoint=checkpoint)


def test_an_evaluation_that_runs_out_of_memory_uses_smaller_batches(tmp_path: Path) -> None:
    """The metrics and predictions stay the same."""
    roomy, hungry = Hungry(), Hungry()
    roomy.most = ROWS
    checkpoint = trained(tmp_path, roomy)
    volumes = volumes_in(tmp_path)
    predictions = PredictTask(
        key="predict-1/m00/p0",
        **common(),
        epoch=1,
        split="valid",
        partitions=(0,),
        checkpoint=checkpoint,
        output="found.arrow",
    )
    found, written = [], []
    for spec in (roomy, hungry):
        with handler_of(spec, volumes) as handler:
            found.append(handler.handle(validation(checkpoint), 1))
            handler.handle(predictions, 1)
            written.append(pa.ipc.open_file(volumes.shared / "found.arrow").read_all())
    assert found[0].rows == found[1].rows == ROWS
    assert found[0].metrics["mean"] == pytest.approx(found[1].metrics["mean"], rel=1e-5)
    assert written[0]["id"] == written[1]["id"]
    assert written[0]["prediction"].to_pylist() == pytest.approx(written[1]["prediction"].to_pylist())


def test_a_model_that_fits_no_device_is_evaluated_on_the_host(tmp_path: Path) -> None:
    """A parallel plan trained it with sharding or offloading."""
    spec = Hungry()
    spec.most, spec.fits_device = ROWS, False
    checkpoint = trained(tmp_path, spec)
    with handler_of(spec, volumes_in(tmp_path)) as handler:
        expected = handler.handle(validation(checkpoint), 1).metrics
        handler._device = torch.device("meta")  # in place of a GPU
        assert handler.handle(validation(checkpoint), 1).metrics == expected


class HostBound(Hungry):
    """Fits no device, and fails on the host with the test's error."""

    most, fits_device = ROWS, False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Iterator[torch.Tensor]:
        for inputs, _ in dataloader:
            yield self._failed(inputs)

    def _failed(self, inputs: torch.Tensor) -> torch.Tensor:
        raise self.error if inputs.device.type == "cpu" else NO_ROOM


@pytest.mark.parametrize(
    "error",
    [MemoryError("no more"), RuntimeError("\"norm\" not implemented for 'Half'")],
    ids=["memory", "user code"],
)
def test_a_failure_on_the_host_does_not_hide_the_device_error(error: Exception, tmp_path: Path) -> None:
    """The device's error is the failure, with the host's as a note."""
    spec = HostBound(error)
    checkpoint = trained(tmp_path, spec)
    with handler_of(spec, volumes_in(tmp_path)) as handler:
        handler._device = torch.device("meta")  # in place of a GPU
        with pytest.raises(torch.OutOfMemoryError) as caught:
            handler.handle(validation(checkpoint), 1)
    failure = failure_of(caught.value)
    assert (failure.kind, failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "device")
    assert failure.message == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert "The evaluation was repeated on the host and failed again" in failure.traceback
    assert str(error) in failure.traceback


def test_other_errors_than_lack_of_memory_are_raised_unchanged(tmp_path: Path) -> None:
    """A full volume on the host pauses the run, despite the earlier lack of memory."""
    spec = HostBound(StorageFullError("no space"))
    checkpoint = trained(tmp_path, spec)
    with handler_of(spec, volumes_in(tmp_path)) as handler:
        handler._device = torch.device("meta")  # in place of a GPU
        with pytest.raises(StorageFullError):
            handler.handle(validation(checkpoint), 1)


class Large(Hungry):
    """A model of 64 MiB."""

    most = ROWS

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        model = nn.Linear(3, 1)
        model.register_buffer("table", torch.ones(16 << 20))
        return [model]


@pytest.mark.parametrize(("limit_mib", "places"), [(96, ["device"]), (32, ["device", "host"])])
def test_reading_does_not_count_as_device_memory_of_an_evaluation(
    limit_mib: int, places: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading counts as host memory; a model that is too large for the device is evaluated on the host."""
    volumes = volumes_in(tmp_path)
    checkpoint = trained(tmp_path, Large())
    with handler_of(Large(), volumes) as handler:
        expected = handler.handle(validation(checkpoint), 1).metrics
    gc.collect()
    with handler_of(Large(), volumes, memory_bytes=limit_mib << 20) as handler:
        assert handler.handle(validation(checkpoint), 1).metrics == expected
    assert len(caplog.records) == (
        0 if places == ["device"] else len(fallback_settings(CPU, 40, is_limited=True)) - 1
    )
