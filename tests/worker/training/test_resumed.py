"""A handler takes a savepoint on preemption, and another handler resumes from it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import PreemptedError
from cerebro.runtime.volumes import Volumes
from cerebro.spec import Checkpoint, DataLoader
from cerebro.usercode.encoding import encode
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_CHILD, TO_CHILD, Preempt, Saved
from model_hopper.handler import Handler
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import ROWS, Linear, learn_from, volumes_in, write_split

SIZE = 4


class Momentum(Linear):
    """Dropout and momentum; `progress` has the sum of losses."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(3, 1))]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1, momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0})
        for inputs, labels in dataloader:
            loss = torch.nn.functional.mse_loss(models[0](inputs)[:, 0], labels.float())
            learn_from(loss, optimizer)
            total["loss"] += loss.item()
        return {"loss": total["loss"]}


class Worker:
    """A handler with its agent's channel, and actions at given batches."""

    def __init__(self, volumes: Volumes, agent: socket.socket, child: socket.socket, cores: int) -> None:
        self.channel = Channel(agent, FROM_CHILD)
        self.at: dict[int, Callable[[], None]] = {}
        context = Context(Channel(child, TO_CHILD), volumes, cores)
        context.user_code.learn({SHA: encode(Momentum()).encoded})
        listen = context.listen

        def listening() -> None:
            self.batch += 1
            self.at.pop(self.batch, lambda: None)()
            listen()

        context.listen = listening  # type: ignore[method-assign]
        self.batch = -1
        self.context, self.handler = context, Handler(context)

    def end_at(self, batch: int, left_s: float) -> None:
        """Preempt the task before this batch."""
        message = Preempt(reason="a test", grace_s=left_s)
        self.at[batch - self.batch - 1] = lambda: self.channel.send(message)

    def saved(self) -> list[Savepoint]:
        """Return the savepoints that the child reported."""
        found = []
        while (message := self.channel.pending()) is not None:
            if isinstance(message, Saved):
                found.append(message.savepoint)
        return found


@contextmanager
def worker(volumes: Volumes, cores: int = 1) -> Iterator[Worker]:
    agent, child = socket.socketpair()
    with agent, child:
        yield Worker(volumes, agent, child, cores)


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Volumes]:
    threads = torch.get_num_threads()
    volume_roots = volumes_in(tmp_path)
    write_split(volume_roots, "train", 1)
    yield volume_roots
    torch.set_num_threads(threads)


def task(savepoint: Savepoint | None = None) -> TrainTask:
    return TrainTask(
        key="fit-1/train/m00/e1/p0", experiment="one", run="fit-1", model="m00", hyperparams={"batch_size": SIZE},
        code=SHA, dataset=DATASET, seed=0, hang_timeout_s=60, epoch=1, partition=0, sub_epoch=0,
        position=Position(), checkpoint=None,
        savepoint=savepoint,
    )  # fmt: skip


def whole(volumes: Volumes, cores: int = 1) -> TaskResult:
    """Run an uninterrupted attempt."""
    with worker(volumes, cores) as one:
        return one.handler.handle(task(), 9)


def left(volumes: Volumes, batch: int, cores: int = 1) -> Savepoint:
    """Preempt an attempt before this batch with time to save; return its savepoint."""
    with worker(volumes, cores) as one:
        one.end_at(batch, left_s=60)
        with pytest.raises(PreemptedError):
            one.handler.handle(task(), 1)
        (savepoint,) = one.saved()
    return savepoint


def same(one: TaskResult, other: TaskResult) -> bool:
    """Return True if checkpoints and metrics are identical."""
    assert one.checkpoint is not None
    assert other.checkpoint is not None
    return (one.checkpoint.checksum, one.metrics) == (other.checkpoint.checksum, other.metrics)


def test_a_preempted_sub_epoch_is_saved_and_resumed_elsewhere(volumes: Volumes) -> None:
    """The file name has the model, attempt and batch; the result counts all rows and the resumed rows."""
    savepoint = left(volumes, 6)
    assert savepoint.checkpoint.name == "one/fit-1/m00/u00000-e001-p0000-a1.s000006.pt"
    assert (savepoint.batch, savepoint.rows) == (6, 24)
    with worker(volumes) as other:
        other.handler.preload(task(savepoint))
        result = other.handler.handle(task(savepoint), 2)
    assert same(result, whole(volumes))
    assert (result.rows, result.resumed_rows) == (ROWS, 24)


def test_timed_savepoints_are_taken_during_a_sub_epoch(volumes: Volumes) -> None:
    """The interval is configurable, and the newest savepoint is valid."""
    with worker(volumes) as one:
        one.context.savepoint_s = 1e-9
        one.handler = Handler(one.context)
        result = one.handler.handle(task(), 1)
        saved = one.saved()
    assert [savepoint.batch for savepoint in saved] == list(range(1, 16))
    with worker(volumes) as other:
        assert same(other.handler.handle(task(saved[-1]), 2), result)


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_an_unreadable_savepoint_only_restarts_the_sub_epoch(
    volumes: Volumes, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """The sub-epoch restarts from its first batch, and the log says why."""
    savepoint = left(volumes, 6)
    path = volumes.checkpoint(savepoint.checkpoint.name)
    data = bytearray(path.read_bytes())
    if damage == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with worker(volumes) as other, caplog.at_level(logging.WARNING):
        result = other.handler.handle(task(savepoint), 2)
    assert same(result, whole(volumes))
    assert result.resumed_rows == 0
    assert ["restarts from its first batch" in record.getMessage() for record in caplog.records] == [True]
