"""A handler trains a fused group: an end for each member, exits, preemption and errors."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

from cerebro import Frozen, StepSpec
from cerebro.contract.tasks.bodies import FusedMember, FusedTask, Position, TrainTask
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import (
    CheckpointCorruptError,
    MetricError,
    NonFiniteMetricError,
    NotApplicableError,
    PreemptedError,
    StorageFullError,
)
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.encoding import encode
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_CHILD, TO_CHILD, Preempt, Progress, Saved
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from model_hopper.handler import Handler
from tests.state.stories import DATASET, SHA
from tests.worker.agent.fake_handler import ECC
from tests.worker.training.fused.test_equality import paired
from tests.worker.training.handlers import ROWS, volumes_in, write_split

SIZE = 4
RATES = (0.05, 0.02, 0.01)


class Classifier(StepSpec):
    """A small network with dropout; a hyperparameter makes it unfit for a stack."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 2)).double()
        ]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        inputs, labels = batch
        loss = functional.cross_entropy(models[0](inputs.double()), labels)
        if hyperparams.get("reads"):
            assert loss.item() > 0
        return loss

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])


class Worker:
    """A handler with its agent's channel, and messages that arrive before given batches."""

    def __init__(self, volumes: Volumes, spec: StepSpec, agent: socket.socket, child: socket.socket) -> None:
        self.channel = Channel(agent, FROM_CHILD)
        self.before: dict[int, Callable[[], None]] = {}
        self.context = Context(Channel(child, TO_CHILD), volumes, cores=1)
        self.context.user_code.learn({SHA: encode(spec).encoded})
        listen, batch = self.context.listen, iter(range(1000))

        def listening() -> None:
            self.before.pop(next(batch), lambda: None)()
            listen()

        self.context.listen = listening  # type: ignore[method-assign]
        self.handler = Handler(self.context)
        self.ends: dict[int, TaskResult | BaseException] = {}
        self.savepoints: dict[int, Savepoint] = {}
        self.batches: dict[int, int] = {}

    def train(self, *members: FusedMember) -> dict[int, TaskResult | BaseException]:
        """Train a group and return how each member ended."""
        self.context.members.begin(len(members), self.ends.__setitem__)
        try:
            self.handler.handle_group(FusedTask(members=members))
        finally:
            while (message := self.channel.pending()) is not None:
                if isinstance(message, Saved):
                    self.savepoints[message.member] = message.savepoint
                if isinstance(message, Progress):
                    self.batches[message.member] = message.batch
        return self.ends

    def send(self, batch: int, member: int | None, grace_s: float = 60.0) -> None:
        """Ask a member, or the whole group, to leave before this batch."""
        message = Preempt(reason="a test", grace_s=grace_s, member=member)
        self.before[batch] = lambda: self.channel.send(message)


@contextmanager
def worker(volumes: Volumes, spec: StepSpec | None = None) -> Iterator[Worker]:
    agent, child = socket.socketpair()
    with agent, child:
        yield Worker(volumes, spec or Classifier(), agent, child)


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    roots = volumes_in(tmp_path)
    write_split(roots, "train", 1)
    return roots


def member(number: int, savepoint: Savepoint | None = None, attempt: int = 1, **changes: Any) -> FusedMember:
    model = f"m{number:02}"
    body = TrainTask(
        key=f"fit-1/train/{model}/e1/p0", experiment="one", run="fit-1", model=model, code=SHA, dataset=DATASET,
        hyperparams={"batch_size": SIZE, "lr": RATES[number], **changes}, seed=0, hang_timeout_s=60, epoch=1,
        partition=0, sub_epoch=0, position=Position(total_steps=16), checkpoint=None, savepoint=savepoint,
        has_shared_order=True,
    )  # fmt: skip
    return FusedMember(task=body.key, attempt=attempt, body=body)


def alone(volumes: Volumes, number: int) -> TaskResult:
    """Train a model in separate training."""
    with worker(volumes) as one:
        return one.handler.handle(member(number).body, 7)


def assert_close(volumes: Volumes, found: object, expected: TaskResult) -> None:
    """Require equal metrics and states up to rounding."""
    assert isinstance(found, TaskResult), found
    assert found.rows == expected.rows == ROWS
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-10)
    assert found.checkpoint is not None
    assert expected.checkpoint is not None
    states = [checkpoints.load(volumes.checkpoints, each.checkpoint, "cpu") for each in (found, expected)]  # type: ignore[arg-type]
    for name, (one, other) in paired(states[0], states[1]).items():
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12), name


def test_each_member_has_its_own_result_and_file(volumes: Volumes) -> None:
    """Results, checkpoints and live progress of each member are as in separate training."""
    with worker(volumes) as one:
        ends = one.train(*(member(number) for number in range(3)))
        assert one.batches == {0: 16, 1: 16, 2: 16}
    for number in range(3):
        assert_close(volumes, ends[number], alone(volumes, number))
    names = {end.checkpoint.name for end in ends.values() if isinstance(end, TaskResult) and end.checkpoint}
    assert len(names) == 3


def test_a_member_leaves_with_a_savepoint_and_continues_alone(volumes: Volumes) -> None:
    """The others are not disturbed."""
    with worker(volumes) as one:
        one.send(5, 1)
        ends = one.train(*(member(number) for number in range(3)))
        assert isinstance(ends[1], PreemptedError)
        assert list(one.savepoints) == [1]
        assert one.savepoints[1].batch == 5
    for number in (0, 2):
        assert_close(volumes, ends[number], alone(volumes, number))
    with worker(volumes) as two:
        resumed = two.handler.handle(member(1, one.savepoints[1], attempt=2).body, 2)
        assert resumed.resumed_rows == 5 * SIZE
    assert_close(volumes, resumed, alone(volumes, 1))


def test_a_revoked_member_leaves_without_a_savepoint(volumes: Volumes) -> None:
    """Nothing is written for it."""
    with worker(volumes) as one:
        one.send(5, 0, grace_s=0.0)
        ends = one.train(member(0), member(1))
        assert isinstance(ends[0], PreemptedError)
        assert one.savepoints == {}
    assert_close(volumes, ends[1], alone(volumes, 1))


def test_a_preempted_group_continues_as_a_group(volumes: Volumes) -> None:
    """All members have a savepoint at the same batch."""
    with worker(volumes) as one:
        one.send(6, None)
        with pytest.raises(PreemptedError):
            one.train(*(member(number) for number in range(3)))
        assert one.ends == {}
        assert {savepoint.batch for savepoint in one.savepoints.values()} == {6}
        assert one.context.preemption.has_raised
    with worker(volumes) as two:
        ends = two.train(*(member(number, one.savepoints[number], attempt=2) for number in range(3)))
    for number in range(3):
        assert_close(volumes, ends[number], alone(volumes, number))


def test_members_with_savepoints_at_other_batches_train_in_other_stacks(volumes: Volumes) -> None:
    """Each continues where it was."""
    with worker(volumes) as one:
        one.send(5, 1)
        one.train(member(0), member(1))
    with worker(volumes) as two:
        ends = two.train(member(2), member(1, one.savepoints[1], attempt=2))
    assert_close(volumes, ends[0], alone(volumes, 2))
    assert_close(volumes, ends[1], alone(volumes, 1))


def test_models_that_cannot_be_stacked_are_refused_with_the_reason(volumes: Volumes) -> None:
    """The controller rules the plan out for them. No checkpoint is written."""
    with worker(volumes) as one:
        with pytest.raises(NotApplicableError, match=r"item\(\)"):
            one.train(*(member(number, reads=True) for number in range(3)))
        assert one.ends == {}
    assert [*volumes.checkpoints.rglob("*.pt")] == []


def test_a_member_whose_metrics_are_refused_fails_alone(volumes: Volumes) -> None:
    """The error names the metric; the others commit."""
    needy = member(1)
    needy = needy.model_copy(update={"body": needy.body.model_copy(update={"needs": ("accuracy",)})})
    with worker(volumes) as one:
        one.send(17, 0)  # for a batch that does not come: the others are not trained again
        ends = one.train(member(0), needy, member(2))
        assert [*one.before] == [17]
    assert isinstance(ends[1], MetricError)
    assert "'accuracy' of model m01 is missing" in str(ends[1])
    for number in (0, 2):
        assert_close(volumes, ends[number], alone(volumes, number))


def test_a_full_volume_ends_all_members_that_are_not_saved(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the volume, as for a single model, and nothing is trained again."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "m01" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with worker(volumes) as one:
        one.send(17, 0)  # for a batch that does not come
        with pytest.raises(StorageFullError):
            one.train(*(member(number) for number in range(3)))
        assert isinstance(one.ends.pop(0), TaskResult)
        assert one.ends == {}
        assert [*one.before] == [17]


def test_a_corrupt_checkpoint_ends_only_its_model(volumes: Volumes) -> None:
    """The others keep their checkpoints and train on."""
    starts = [alone(volumes, number) for number in range(3)]
    members = [
        each.model_copy(update={"body": each.body.model_copy(update={"checkpoint": start.checkpoint})})
        for each, start in zip(map(member, range(3)), starts, strict=True)
    ]
    assert starts[1].checkpoint is not None
    volumes.checkpoint(starts[1].checkpoint.name).write_bytes(b"damaged")
    with worker(volumes) as one:
        ends = one.train(*members)
    assert isinstance(ends[1], CheckpointCorruptError)
    for number in (0, 2):
        with worker(volumes) as two:
            assert_close(volumes, ends[number], two.handler.handle(members[number].body, 7))


class Broken(Classifier):
    """Meets a broken GPU in `configure_optimizers` of one model, or in a step."""

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        if hyperparams.get("in_step"):
            raise RuntimeError(ECC)
        return super().training_step(models, batch, hyperparams)

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        if hyperparams.get("at_start"):
            raise RuntimeError(ECC)
        return super().configure_optimizers(models, hyperparams)


@pytest.mark.parametrize(("place", "numbers"), [("at_start", (1,)), ("in_step", (0, 1, 2))])
def test_a_broken_device_ends_the_whole_group(place: str, numbers: tuple[int, ...], volumes: Volumes) -> None:
    """It says nothing about one model, nor about stacks."""
    changes: list[dict[str, Any]] = [{place: number in numbers} for number in range(3)]
    members = [member(number, **each) for number, each in enumerate(changes)]
    with worker(volumes, Broken()) as one:
        with pytest.raises(RuntimeError, match="uncorrectable ECC"):
            one.train(*members)
        assert one.ends == {}


def test_a_member_that_diverges_fails_alone(volumes: Volumes) -> None:
    """It has no checkpoint, and the others have theirs."""
    with worker(volumes) as one:
        ends = one.train(member(0), member(1, lr=1e300))
        assert isinstance(ends[1], NonFiniteMetricError)
    assert_close(volumes, ends[0], alone(volumes, 0))


class Encoder(torch.nn.Module):
    """A frozen encoder with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear(3, 4)
        torch.nn.init.constant_(linear.weight, 0.3)
        torch.nn.init.constant_(linear.bias, 0.1)
        self.layers = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(4)).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.layers(inputs.double())
        return encoded


class Transfer(Classifier):
    """Trains a head on a frozen encoder."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [Frozen(Encoder()), torch.nn.Linear(4, 2).double()]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        return functional.cross_entropy(models[1](models[0](batch[0])), batch[1])

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(models[1].parameters(), lr=hyperparams["lr"])


def test_a_stack_computes_frozen_layers_once(volumes: Volumes) -> None:
    """All members read the outputs of one computation, also for the first batch, as in separate training."""
    rows: list[int] = []

    def count(module: torch.nn.Module, arguments: Any, outputs: Any) -> None:
        if type(module).__name__ == Encoder.__name__:  # the handler has a copy of the class
            rows.append(len(outputs))

    hook = register_module_forward_hook(count)
    with worker(volumes, Transfer()) as one:
        ends = one.train(*(member(number) for number in range(3)))
    hook.remove()
    # Two rows are checked alone. If storing takes too long, they are computed a second time, for the memory.
    once = [32, 1, 1, ROWS - 32]
    assert rows in (once, once * 2)
    for number in range(3):
        with worker(volumes, Transfer()) as two:
            assert_close(volumes, ends[number], two.handler.handle(member(number).body, 7))
