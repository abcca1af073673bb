"""Stacks, options of a `StepSpec` and frozen layers on a real GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch.nn import functional

from cerebro import Frozen, StepSpec
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.comparison import differences, trained
from cerebro.worker.training.metrics import Measured
from cerebro.worker.training.trainee import Trainee
from tests.state.stories import DATASET, SHA
from tests.steps.training import Hopping
from tests.steps.training import Steps as SingleSteps
from tests.worker.training.fused.groups import Model, Steps, Training, write_partitions
from tests.worker.training.fused.test_equality import assert_close, with_all
from tests.worker.training.handlers import handler_of, volumes_in, write_split

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two partitions of pictures."""
    return write_partitions(tmp_path_factory.mktemp("pictures"))


class WithoutDropout(Steps):
    """The masks of a stack on a GPU differ from separate training."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        models = super().create_models(hyperparams)
        for part in models[0].modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
            elif isinstance(part, nn.MultiheadAttention | nn.RNNBase):
                part.dropout = 0.0
        return models


@pytest.mark.parametrize("network", ["mlp", "cnn", "lstm", "transformer"])
def test_a_stack_equals_separate_training(network: str, partitions: list[Path], gpu: torch.device) -> None:
    """Up to rounding, in float64."""
    hyperparams = with_all(network=network, double=True)
    stacked = Training(WithoutDropout(), partitions, hyperparams, gpu).stacks([0, 1, 2], sub_epochs=2)
    separate = Training(WithoutDropout(), partitions, hyperparams, gpu).alone(2)
    assert_close(stacked, separate, 1e-8)


def test_the_other_members_do_not_matter(partitions: list[Path], gpu: torch.device) -> None:
    """Masks of dropout included."""
    hyperparams = with_all(network="cnn", double=True)
    three = Training(Steps(), partitions, hyperparams, gpu).stacks([0, 1, 2], sub_epochs=2)
    fewer = Training(Steps(), partitions, hyperparams, gpu).stacks([2, 0], [1], sub_epochs=2)
    assert_close(three, fewer, 1e-8)


def test_a_member_that_leaves_continues_alone(partitions: list[Path], gpu: torch.device) -> None:
    """From its savepoint, as if undisturbed."""
    hyperparams = with_all(network="mlp", double=True)
    disturbed = Training(WithoutDropout(), partitions, hyperparams, gpu)
    disturbed.stack(0, [0, 1, 2], stops={1: 2})
    disturbed.separate(0, 1)
    assert disturbed.resumed == [2]
    undisturbed = Training(WithoutDropout(), partitions, hyperparams, gpu).alone(1)
    assert_close(disturbed, undisturbed, 1e-8)


class Scaled(WithoutDropout):
    """Reads a hyperparameter that differs between models."""

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        returned = super().training_step(models, batch, hyperparams)
        return {**returned, "loss": returned["loss"] * (1 - hyperparams["weight_decay"])}


def test_steps_may_read_numbers_that_differ(partitions: list[Path], gpu: torch.device) -> None:
    """They are on the GPU, as the losses are."""
    hyperparams = with_all(network="mlp", double=True)
    stacked = Training(Scaled(), partitions, hyperparams, gpu).stacks([0, 1, 2], sub_epochs=1)
    assert_close(stacked, Training(Scaled(), partitions, hyperparams, gpu).alone(1), 1e-6)


class Places(Training):
    """Collects the devices of the steps in the optimizers of trained models."""

    def _finish(self, model: Model, trainee: Trainee, metrics: Measured) -> None:
        states = trainee.checkpoint["optimizer"]["state"].values()
        self.devices = {*getattr(self, "devices", ()), *(state["step"].device.type for state in states)}
        super()._finish(model, trainee, metrics)


def test_the_step_of_adam_is_on_the_host_after_a_stack(partitions: list[Path], gpu: torch.device) -> None:
    """As after separate training, so a model that trains alone does not wait for it."""
    stacked = Places(WithoutDropout(), partitions, with_all(network="mlp"), gpu)
    stacked.stack(0, [0, 1, 2])
    assert stacked.devices == {"cpu"}


COMPILED = pytest.param({"compile": True}, marks=[pytest.mark.slow, pytest.mark.processes])


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, {"precision": "fp16"}, {"ema": 0.9}, COMPILED], ids=str
)
def test_options_of_a_step_spec_train_nearly_the_same_weights(
    options: dict[str, Any], partitions: list[Path], gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the option. The scaler of fp16 is in the checkpoint."""
    if options.get("compile"):
        monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # no pool that outlives the test
    state = Hopping(SingleSteps(), partitions, device=gpu, **options).train()
    expected = Hopping(SingleSteps(), partitions, device=gpu).train()
    assert not list(differences(state["models"], expected["models"], tolerance=0.05))
    assert ("scaler" in state["checkpoint"]) == (options.get("precision") == "fp16")


@pytest.mark.parametrize("options", [{}, {"precision": "fp16"}, {"ema": 0.9}], ids=str)
def test_a_sub_epoch_continues_from_its_savepoint(
    options: dict[str, Any], partitions: list[Path], gpu: torch.device
) -> None:
    """With the same bits as an undisturbed one."""
    stopped = Hopping(SingleSteps(), partitions, device=gpu, stop=3, **options)
    undisturbed = Hopping(SingleSteps(), partitions, device=gpu, **options)
    assert not list(differences(trained(stopped.train()), trained(undisturbed.train())))
    assert stopped.saved_batches == [3] * 4


class Transfer(StepSpec):
    """A head on frozen layers; the hyperparameter `is_direct` computes them in each batch."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh()).requires_grad_(False)
        return [encoder if hyperparams["is_direct"] else Frozen(encoder), nn.Linear(8, 2)]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        inputs, labels = batch
        return functional.cross_entropy(models[1](models[0](inputs)), labels)

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(models[1].parameters(), lr=0.01)


def test_models_train_on_stored_outputs_of_frozen_layers(tmp_path: Path) -> None:
    """The first one stores them, the second one reads them; both equal direct computation up to rounding."""
    volumes = volumes_in(tmp_path)
    write_split(volumes, "train", 1)
    heads: list[Any] = []
    for model, is_direct in (("m00", False), ("m01", False), ("m02", True)):
        task = TrainTask(
            key=f"fit-1/train/{model}/e1/p0", experiment="one", run="fit-1", model=model, code=SHA, dataset=DATASET,
            hyperparams={"batch_size": 8, "is_direct": is_direct}, seed=0, hang_timeout_s=60.0, epoch=1, partition=0,
            sub_epoch=0, position=Position(total_steps=8), checkpoint=None, has_shared_order=True,
        )  # fmt: skip
        task = task.model_copy(update={"model": "m00"})  # the same weights and random numbers
        with handler_of(Transfer(), volumes) as handler:
            found = handler.handle(task, len(heads) + 1)
        assert found.checkpoint is not None
        heads.append(checkpoints.load(volumes.checkpoints, found.checkpoint, "cpu")["models"][1])
    for head in heads[:2]:
        assert not list(differences(head, heads[2], tolerance=1e-4))
