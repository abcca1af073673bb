"""Members of a stack leave, fail and continue one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from cerebro import Ratio
from cerebro.data.loader import Batch, PartitionLoader
from cerebro.errors import NonFiniteMetricError, SpecError
from cerebro.worker.training.fused.stack import Model as StackedModel
from cerebro.worker.training.fused.stack import Stack
from tests.worker.training.fused.groups import Steps, Training
from tests.worker.training.fused.test_equality import OPTIONS, assert_close, with_all


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3], OPTIONS[4]], ids=str)
@pytest.mark.parametrize("network", ["cnn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_a_member_that_leaves_continues_alone(
    network: str, options: dict[str, Any], partitions: list[Path]
) -> None:
    """It continues from its savepoint in separate training, as if undisturbed; the others go on in the stack."""
    hyperparams = with_all(network=network, double=True, **options)
    disturbed = Training(Steps(), partitions, hyperparams)
    disturbed.stack(0, [0, 1, 2], stops={1: 2})
    disturbed.separate(0, 1)
    disturbed.stack(1, [2, 1, 0])
    assert disturbed.resumed == [2]
    assert_close(disturbed, Training(Steps(), partitions, hyperparams).alone(2), 1e-10)


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3], OPTIONS[4]], ids=str)
def test_models_that_stop_alone_continue_as_a_stack(options: dict[str, Any], partitions: list[Path]) -> None:
    """Savepoints of separate training have the form of a stack's."""
    hyperparams = with_all(network="cnn", double=True, **options)
    disturbed = Training(Steps(), partitions, hyperparams)
    for number in range(3):
        disturbed.separate(0, number, stop=4)
    disturbed.stack(0, [0, 1, 2])
    assert disturbed.resumed == [4, 4, 4]
    assert_close(disturbed, Training(Steps(), partitions, hyperparams).alone(1), 1e-10)


def test_a_whole_stack_stops_and_continues(partitions: list[Path]) -> None:
    """All members have a savepoint at the same batch, and continue as a stack."""
    hyperparams = with_all(network="cnn", double=True, accumulate=2)
    disturbed = Training(Steps(), partitions, hyperparams)
    disturbed.stack(0, [0, 1, 2], stops={0: 3, 1: 3, 2: 3})
    disturbed.stack(0, [0, 1, 2])
    assert disturbed.resumed == [3, 3, 3]
    assert_close(disturbed, Training(Steps(), partitions, hyperparams).alone(1), 1e-10)


def test_a_member_whose_loss_becomes_nan_fails_alone(partitions: list[Path]) -> None:
    """The other members get the numbers of a stack without it."""
    hyperparams = with_all(double=True)
    hyperparams[1]["lr"] = 1e300
    stacked = Training(Steps(), partitions, hyperparams)
    stacked.stack(0, [0, 1, 2])
    failed = stacked.models.pop(1)
    assert isinstance(failed.error, NonFiniteMetricError)
    assert "loss became nan in epoch 1, partition 0" in str(failed.error)
    del hyperparams[1]
    expected = Training(Steps(), partitions, hyperparams)
    expected.models[1].name = "m02"
    assert_close(stacked, expected.alone(1), 1e-10)


class Picky(Steps):
    """Refuses a learning rate."""

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        if hyperparams["lr"] == 0.003:
            raise ValueError("no such rate")
        return super().configure_optimizers(models, hyperparams)


def test_a_member_without_an_optimizer_fails_alone(partitions: list[Path]) -> None:
    """An error of `configure_optimizers` concerns one model."""
    stacked = Training(Picky(), partitions, with_all())
    stacked.stack(0, [0, 1, 2])
    assert [type(model.error) for model in stacked.models] == [type(None), ValueError, type(None)]
    assert [len(model.metrics) for model in stacked.models] == [1, 0, 1]


class Unreadable(PartitionLoader):
    """A partition whose third batch cannot be read."""

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(super().__iter__()):
            if number == 2:
                raise OSError("the disk is gone")
            yield batch


class OfUnreadable(Training):
    """Reads partitions with `Unreadable`."""

    def _loader(self, sub_epoch: int, first: int) -> PartitionLoader:
        return Unreadable([self.folders[0]], batch_size=8, seed=1, first=first)


def test_a_batch_that_cannot_be_read_ends_all_members(partitions: list[Path]) -> None:
    """No member takes the error for the end of the partition."""
    stacked = OfUnreadable(Steps(), partitions, with_all())
    with pytest.raises(OSError, match="the disk is gone"):
        stacked.stack(0, [0, 1, 2])
    assert all(model.error is None and not model.metrics for model in stacked.models)


class Rich(Steps):
    """Reads a hyperparameter that differs, returns ratios and constants, and draws noise."""

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        pictures, labels = batch
        logits = models[0](pictures.double() + hyperparams["noise"] * torch.randn(8, 8, dtype=torch.float64))
        loss = functional.cross_entropy(logits, labels) * hyperparams["weight_decay"] + hyperparams["shift"]
        hits = (logits.argmax(1) == labels).sum()
        correct = (logits.argmax(1) == labels).float()
        return {
            "loss": loss,
            "hits": Ratio(hits, len(labels)),
            "rows": len(labels),
            "two": Ratio(2, 1),
            "correct": correct,
        }


def test_steps_may_read_numbers_that_differ(partitions: list[Path]) -> None:
    """Numbers that differ are tensors of the stack; ratios, constants and noise are as in separate training."""
    hyperparams = with_all(double=True, shift=0.5, noise=0.1)
    hyperparams[0]["weight_decay"] = 0.05
    stacked = Training(Rich(), partitions, hyperparams).stacks([0, 1, 2], sub_epochs=2)
    assert_close(stacked, Training(Rich(), partitions, hyperparams).alone(2), 1e-6)
    assert stacked.models[0].metrics[0]["two"] == Ratio(12.0, 6.0)


def test_numbers_that_differ_are_on_the_device_of_the_stack() -> None:
    """A device without kernels, as a GPU is not in every machine: torch refuses to mix it with host memory."""
    models = []
    for number in range(2):
        module = torch.nn.Linear(3, 2, device="meta")
        optimizer = torch.optim.Adam(module.parameters())
        hyperparams = {"scale": 0.1 * (1 + number)}
        models.append(StackedModel(f"m{number}", [module], optimizer, hyperparams, torch.Generator()))
    inputs = torch.empty(4, 3, device="meta")
    found = Stack(models).compute(
        lambda modules, hyperparams: {"loss": modules[0](inputs).mean() * hyperparams["scale"]}
    )
    assert (found["loss"].shape, found["loss"].device.type) == ((2,), "meta")


class Special(torch.nn.Module):
    """Replaces a buffer, shares a weight, and has a frozen, an unused and an untrained parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(64, 64)
        self.frozen.requires_grad_(False)
        self.unused, self.untrained = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(64))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(64))
        self.head = torch.nn.Linear(64, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        rows = self.second(torch.tanh(self.first(pictures.flatten(1)))) + self.frozen(pictures.flatten(1))
        self.mean = 0.9 * self.mean + 0.1 * rows.detach().mean(0)
        logits: torch.Tensor = self.head(torch.tanh(rows - self.mean) * self.untrained)
        return logits


class SpecialSteps(Steps):
    """Trains `Special`; one parameter is in no optimizer."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [Special().double()]

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        parameters = [each for name, each in models[0].named_parameters() if name != "untrained"]
        return torch.optim.AdamW(parameters, lr=hyperparams["lr"], weight_decay=hyperparams["weight_decay"])


def test_special_parameters_and_buffers_are_kept(partitions: list[Path]) -> None:
    """Shared, frozen, unused and untrained parameters, and replaced buffers, are as in separate training."""
    hyperparams = with_all(double=True)
    stacked = Training(SpecialSteps(), partitions, hyperparams).stacks([0, 1, 2], sub_epochs=2)
    assert_close(stacked, Training(SpecialSteps(), partitions, hyperparams).alone(2), 1e-10)


def test_a_stack_leaves_the_process_as_before(partitions: list[Path]) -> None:
    """Functions of torch that a stack replaces are torch's own again."""
    functions = functional.dropout, torch.rand, functional.scaled_dot_product_attention
    names = dict(vars(torch._VF))
    Training(Steps(), partitions, with_all()).stacks([0, 1, 2], sub_epochs=1)
    assert (functional.dropout, torch.rand, functional.scaled_dot_product_attention) == functions
    assert dict(vars(torch._VF)) == names
    assert isinstance(random.random(), float)


def test_an_invalid_option_names_the_model_alone(partitions: list[Path]) -> None:
    """A wrong option of one model is that model's error."""
    hyperparams = with_all()
    hyperparams[2]["clip_norm"] = -1.0
    stacked = Training(Steps(), partitions, hyperparams)
    stacked.stack(0, [0, 1, 2])
    assert isinstance(stacked.models[2].error, SpecError)
    assert [len(model.metrics) for model in stacked.models] == [1, 1, 0]
