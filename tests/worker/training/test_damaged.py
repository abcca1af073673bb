"""Checkpoint damage at any moment is detected or harmless: no sub-epoch trains from other bytes.

The test acts as controller and failing disk. Two models alternate on one handler, so each checkpoint is read
ahead
while the other model trains. One checkpoint is damaged at a step of the run: a hint, a block read, a batch,
or the
last step of a sub-epoch.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch

from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files import durable
from cerebro.errors import CheckpointCorruptError
from cerebro.runtime.volumes import Volumes
from cerebro.spec import DataLoader, SubEpochSpec
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_CHILD
from cerebro.worker.training.checkpoints import verified_file
from cerebro.worker.training.checkpoints.checkpoint import check, load, read, save
from model_hopper import handler
from model_hopper.handler import Handler
from tests.data.rows import write_partition

CPU = torch.device("cpu")
SHA = "c" * 64
SUB_EPOCHS = 3
DAMAGES = ("flip", "cut", "page", "replace", "remove")


def damage(path: Path, how: str, place: float) -> None:
    """Damage a file at the relative position `place`."""
    size = path.stat().st_size
    offset = min(size - 1, int(place * size))
    if how == "remove":
        path.unlink()
    elif how == "replace":
        path.with_suffix(".new").write_bytes(random.Random(size).randbytes(size))
        path.with_suffix(".new").replace(path)
    else:
        with path.open("r+b") as file:
            file.seek(offset)
            found = file.read(1 if how == "flip" else 4096)
            file.seek(offset)
            if how == "cut":
                file.truncate()
            else:
                file.write(bytes(byte ^ 0x10 for byte in found))


class Moments:
    """Counts the steps of a run and calls a function at one step."""

    def __init__(self, chosen: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.count, self._chosen, self._act = 0, chosen, act
        self._lock = threading.Lock()

    def pass_one(self) -> None:
        """Count a step."""
        with self._lock:
            self.count += 1
            if self.count - 1 == self._chosen:
                self._act()


class Spec(SubEpochSpec):
    """A model of a few blocks with momentum; each batch is a step.

    Attributes:
        meanwhile: called during the first batch of a sub-epoch.
    """

    def __init__(self) -> None:
        self.moments = Moments()
        self.meanwhile: Callable[[], None] = lambda: None

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [
            torch.nn.Sequential(torch.nn.Linear(3, 300), torch.nn.Dropout(0.2), torch.nn.Linear(300, 700))
        ]

    def train(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        weights = list(models[0].parameters())
        momenta = checkpoint.get("momenta") or [torch.zeros_like(weight) for weight in weights]
        for inputs, _ in dataloader:
            self.moments.pass_one()
            self.meanwhile()
            slopes = torch.autograd.grad(models[0](inputs).square().mean(), weights)
            for weight, momentum, slope in zip(weights, momenta, slopes, strict=True):
                momentum.mul_(0.9).add_(slope)
                weight.data.sub_(momentum, alpha=0.1)
        checkpoint["momenta"] = momenta
        return {"loss": 0.0}


class Worker:
    """A handler with its volumes, and the calls of a controller."""

    def __init__(self, root: Path) -> None:
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(root)})
        write_partition(self.volumes.partition("d", "train", 0), [6])
        self.ends = socket.socketpair()
        context = Context(Channel(self.ends[0], TO_CHILD), self.volumes, 1)
        self.spec = Spec()
        context.user_code._specs[SHA, (), None] = self.spec
        self.handler = Handler(context)
        self.done: dict[tuple[str, int], CheckpointRef] = {}
        self.attempts: dict[tuple[str, int], int] = {}
        self.noticed = 0
        self.first = 0
        """The first step with an existing checkpoint."""

    def task(self, model: str, sub_epoch: int) -> TrainTask:
        """Return a sub-epoch from the newest checkpoint of the previous one."""
        return TrainTask(
            key=f"fit-1/train/{model}/e1/p{sub_epoch}", experiment="one", run="fit-1", model=model,
            hyperparams={"batch_size": 3}, code=SHA, dataset="d", seed=1, hang_timeout_s=1.0, epoch=sub_epoch + 1,
            partition=0, sub_epoch=sub_epoch, position=Position(),
            checkpoint=self.done[model, sub_epoch - 1] if sub_epoch else None,
        )  # fmt: skip

    def hint(self, following: tuple[str, int] | None) -> None:
        """Send the handler one hint about the next task."""
        self.spec.meanwhile = lambda: None
        if following is not None:
            self.spec.moments.pass_one()
            self.handler.preload(self.task(*following))
            self.spec.moments.pass_one()
            self.handler._loader.submit(self.spec.moments.pass_one).result()

    def do(self, model: str, sub_epoch: int, following: tuple[str, int] | None) -> None:
        """Train a sub-epoch while the next checkpoint is read; repeat earlier ones with damaged checkpoints."""
        self.spec.meanwhile = lambda: self.hint(following)
        moments = self.spec.moments
        attempt = self.attempts[model, sub_epoch] = self.attempts.get((model, sub_epoch), 0) + 1
        try:
            result = self.handler.handle(self.task(model, sub_epoch), attempt)
        except CheckpointCorruptError:
            self.noticed += 1
            self.do(model, sub_epoch - 1, None)
            return self.do(model, sub_epoch, None)
        assert result.checkpoint is not None
        self.first = self.first or moments.count
        self.done[model, sub_epoch] = result.checkpoint
        return None

    def run(self) -> dict[str, str]:
        """Train both models; return the checksums of their last checkpoints."""
        torch.set_num_threads(1)
        turns = [(model, sub_epoch) for sub_epoch in range(SUB_EPOCHS) for model in ("a", "b")]
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            self.do(*turn, following)
        for model in ("a", "b"):
            self.spec.moments.pass_one()
            try:
                load(self.volumes.checkpoints, self.done[model, SUB_EPOCHS - 1], CPU)
            except CheckpointCorruptError:
                self.noticed += 1
                self.do(model, SUB_EPOCHS - 1, None)
        return {model: self.done[model, SUB_EPOCHS - 1].checksum for model in ("a", "b")}


@contextmanager
def worker(small_bytes: int = 0) -> Iterator[Worker]:
    """Make a worker for which each block read is a step.

    Args:
        small_bytes: states up to this size are read ahead in full; larger ones are only checked.
    """
    threads = torch.get_num_threads()
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        worker = Worker(Path(name))

        def counted(file: Any, buffer: memoryview) -> memoryview:
            worker.spec.moments.pass_one()
            return durable_fill(file, buffer)

        durable_fill = durable.fill
        patch.setattr(os, "fsync", lambda descriptor: None)  # no power failure occurs
        patch.setattr(durable, "fill", counted)
        patch.setattr(verified_file, "fill", counted)
        patch.setattr(handler, "_SMALL_BYTES", small_bytes)
        try:
            yield worker
        finally:
            worker.handler._loader.shutdown()
            torch.set_num_threads(threads)
            for end in worker.ends:
                end.close()


class Undisturbed(NamedTuple):
    """The result of a run without damage.

    Attributes:
        moments: its steps from the first checkpoint on.
    """

    small_bytes: int
    sums: dict[str, str]
    moments: range


@pytest.fixture(scope="module", params=[0, 2**30], ids=["checked", "read"])
def undisturbed(request: pytest.FixtureRequest) -> Undisturbed:
    """An undisturbed run, with checkpoints read or only checked ahead."""
    with worker(request.param) as whole:
        return Undisturbed(request.param, whole.run(), range(whole.first, whole.spec.moments.count))


def disturbed(
    small_bytes: int, moment: int, which: float, how: str, place: float
) -> tuple[dict[str, str], int]:
    """Repeat the run with a checkpoint damaged at a step; return the checksums and the number of detections."""
    with worker(small_bytes) as one:

        def strike() -> None:
            paths = [one.volumes.checkpoint(reference.name) for reference in one.done.values()]
            damage(paths[int(which * len(paths))], how, place)

        one.spec.moments = Moments(moment, strike)
        return one.run(), one.noticed


@pytest.mark.slow
def test_a_checkpoint_damaged_at_any_moment_changes_no_weight(undisturbed: Undisturbed) -> None:
    """The previous sub-epoch is repeated, or the damage came after the last use."""
    assert_noticed_or_harmless(undisturbed, times=8)


@pytest.mark.slow
def test_two_hundred_damages_are_detected_or_harmless(undisturbed: Undisturbed) -> None:
    """Uses two hundred random steps."""
    noticed = assert_noticed_or_harmless(undisturbed, times=200)
    assert 40 <= noticed <= 160


def assert_noticed_or_harmless(undisturbed: Undisturbed, times: int) -> int:
    """Damage checkpoints at random steps, compare the weights, and return the number of detections."""
    rng = random.Random(11)
    noticed = 0
    for _ in range(times):
        chosen = rng.choice(undisturbed.moments), rng.random(), rng.choice(DAMAGES), rng.random()
        found, count = disturbed(undisturbed.small_bytes, *chosen)
        assert found == undisturbed.sums, chosen
        noticed += count > 0
    return noticed


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_between_the_check_and_the_use_is_detected(tmp_path: Path, how: str) -> None:
    """Covers all positions in the file; a state in memory is unaffected."""
    state = {"models": [{"w": torch.arange(400_000.0)}], "checkpoint": {"m": torch.ones(100_000)}}
    for place in (0.0, 0.3, 0.6, 1.0):
        reference = save(tmp_path, "u0.pt", state)
        ahead, before = check(tmp_path, reference), load(tmp_path, reference, CPU)
        damage(tmp_path / "u0.pt", how, place)
        with pytest.raises(CheckpointCorruptError, match=r"u0\.pt"):
            read(ahead, CPU)
        assert torch.equal(before["models"][0]["w"], torch.arange(400_000.0))


def test_a_large_checkpoint_checked_ahead_holds_no_memory() -> None:
    """Two such models may not fit in memory, and the next sub-epoch may be revoked."""
    others = live_tensors()  # of tests before: kept, so that no new tensor gets the identity of one of them
    ids = {id(other) for other in others}
    with worker() as one:
        one.do("a", 0, None)
        assert one.volumes.checkpoint(one.done["a", 0].name).stat().st_size > 3 * durable.BLOCK_BYTES
        held: list[int] = []
        one.spec.moments = Moments(2, lambda: held.append(tensor_bytes(ids)))
        one.do("b", 0, ("a", 1))
        before: list[int] = []
        one.spec.moments = Moments(0, lambda: before.append(tensor_bytes(ids)))
        one.do("c", 0, None)
        assert held == before
    del others


def live_tensors() -> list[torch.Tensor]:
    """Return all live tensors of the process."""
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]


def tensor_bytes(others: set[int]) -> int:
    """Return the size of all live tensors without `others`: tests of compilation leave tensors of unknown size."""
    return sum(tensor.nbytes for tensor in live_tensors() if id(tensor) not in others)
