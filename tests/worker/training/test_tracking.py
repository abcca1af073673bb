"""Tracked objects are saved with the model, and changed hyperparameters take effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.records import Hyperparameters
from cerebro.errors import SpecError
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.worker.training import tracked_checkpoint
from cerebro.worker.training.checkpoints.checkpoint import load, save
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee
from tests.worker.training.handlers import learn_from
from tests.worker.training.test_checkpoint import assert_equal
from tests.worker.training.test_sub_epoch import Rows

CPU = torch.device("cpu")
OLD: Hyperparameters = {"batch_size": 4, "lr": 0.01, "momentum": 0.9}

Training = Callable[[torch.nn.Module, Checkpoint, Mapping[str, Any]], torch.optim.Optimizer]
"""Makes a sub-epoch's optimizer and restores it."""


class Spec(SubEpochSpec):
    """A small regression; the test makes and stores the optimizer."""

    def __init__(self, training: Training, keeps: bool = False) -> None:
        self.training, self.keeps = training, keeps

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = self.training(models[0], checkpoint, hyperparams)
        for inputs, outputs in dataloader:
            loss = torch.nn.functional.mse_loss(models[0](inputs), outputs)
            learn_from(loss, optimizer)
        if self.keeps:
            checkpoint["optimizer"] = optimizer.state_dict()
        return {"lr": optimizer.param_groups[0]["lr"]}


def new_optimizer(network: torch.nn.Module, hyperparams: Mapping[str, Any]) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), lr=hyperparams["lr"], momentum=hyperparams["momentum"])


def tracking_it(
    network: torch.nn.Module, checkpoint: Checkpoint, hyperparams: Mapping[str, Any]
) -> torch.optim.Optimizer:
    optimizer = new_optimizer(network, hyperparams)
    checkpoint.track(optimizer=optimizer)
    return optimizer


def keeping_it(
    network: torch.nn.Module, checkpoint: Checkpoint, hyperparams: Mapping[str, Any]
) -> torch.optim.Optimizer:
    optimizer = new_optimizer(network, hyperparams)
    if "optimizer" in checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
    return optimizer


TRACKS, KEEPS = Spec(tracking_it), Spec(keeping_it, keeps=True)


def sub_epoch(spec: Spec, trainee: Trainee, *, number: int = 0) -> dict[str, float]:
    """Train one sub-epoch."""
    return numbers_of(
        train_sub_epoch(
            spec, trainee, Rows(), trainee.hyperparams, seed=0, model="m00", epoch=1 + number, partition=0
        )
    )


def new(hyperparams: Hyperparameters = OLD, spec: Spec = TRACKS) -> Trainee:
    return create(spec, hyperparams, seed=0, model="m00", device=CPU)


def hopped(trainee: Trainee, folder: Path, hyperparams: Hyperparameters = OLD) -> Trainee:
    """Save the model, and load it on another worker with these hyperparameters."""
    arrived = new(hyperparams)
    restore(arrived, load(folder, save(folder, "u.pt", trainee.state()), CPU))
    return arrived


# --- restored and saved ------------------------------------------------------------------------------


def test_tracked_objects_move_with_the_model(tmp_path: Path) -> None:
    """Three sub-epochs with two hops equal three in which user code saves the optimizer, momentum included."""
    tracked, kept = new(), new(spec=KEEPS)
    for number in range(3):
        sub_epoch(TRACKS, tracked, number=number)
        sub_epoch(KEEPS, kept, number=number)
        assert_equal(tracked.state()["models"], kept.state()["models"])
        assert_equal(tracked.state()["checkpoint"], kept.state()["checkpoint"])
        tracked, kept = hopped(tracked, tmp_path), hopped(kept, tmp_path)
    assert tracked.checkpoint["optimizer"]["state"][0]["momentum_buffer"].abs().sum() > 0


def test_a_model_in_memory_continues_like_a_model_that_hops(tmp_path: Path) -> None:
    """As in a replay, which neither saves nor loads between sub-epochs."""
    stays, hops = new(), new()
    for number in range(3):
        sub_epoch(TRACKS, stays, number=number)
        sub_epoch(TRACKS, hops, number=number)
        hops = hopped(hops, tmp_path)
    assert_equal(stays.state(), hops.state())


# --- untrackable objects -----------------------------------------------------------------------------


class Strange:
    """Has `state_dict` and `load_state_dict`, but its state cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"inside": frozenset({1, 2})}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            3,
            r"checkpoint.track\(thing=...\) got a builtins.int, expected an object with state_dict\(\) and load_state",
        ),
        (torch.ones(2), r"got a torch.Tensor, expected .* checkpoint\['thing'\] = ..."),
        (torch.nn.Linear, r"expected an object with state_dict\(\)"),
        (None, r"got a builtins.NoneType"),
        (Strange(), r"the state_dict\(\) of 'thing', .*\['inside'\] holds a builtins.frozenset"),
    ],
    ids=["number", "tensor", "class", "none", "unstorable"],
)
def test_an_object_that_cannot_be_tracked_is_an_error_at_the_call(value: Any, message: str) -> None:
    """The error has the name and the remedy; existing entries stay, and no object of the same call is tracked."""
    checkpoint = tracked_checkpoint.Checkpoint({"thing": {"weight": 1}, "n": 3})
    network, beside = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    checkpoint.track(network=network)
    with pytest.raises(SpecError, match=message):
        checkpoint.track(beside=beside, thing=value)
    assert dict(checkpoint) == {"thing": {"weight": 1}, "n": 3}
    assert list(checkpoint.tracked) == ["network"]


def test_two_objects_cannot_have_one_name() -> None:
    """The same object may be tracked again, without a second load."""
    checkpoint, network = tracked_checkpoint.Checkpoint(), torch.nn.Linear(1, 1)
    checkpoint.track(network=network)
    checkpoint.track(network=network)
    with pytest.raises(SpecError, match="second object named 'network'"):
        checkpoint.track(network=torch.nn.Linear(1, 1))


def test_an_object_that_cannot_load_its_saved_state_is_named(tmp_path: Path) -> None:
    """Shapes or parameter counts differ; the error includes the object's own message."""
    trainee = new()
    sub_epoch(TRACKS, trainee)
    arrived = hopped(trainee, tmp_path)
    other = torch.optim.SGD(torch.nn.Linear(1, 1, bias=False).parameters(), lr=0.1)
    with pytest.raises(SpecError, match=r"track\(optimizer=...\): the SGD does not take .*parameter group"):
        arrived.checkpoint.track(optimizer=other)
    assert "optimizer" in arrived.checkpoint


# --- the learning-rate trap --------------------------------------------------------------------------


def test_a_changed_learning_rate_takes_effect(tmp_path: Path) -> None:
    """The momentum stays, and later sub-epochs keep the new rate."""
    trainee = new()
    sub_epoch(TRACKS, trainee)
    changed = {**OLD, "lr": 0.003}
    arrived = hopped(trainee, tmp_path, changed)
    assert sub_epoch(TRACKS, arrived, number=1)["lr"] == 0.003
    state = arrived.checkpoint["optimizer"]
    assert (state["param_groups"][0]["lr"], state["param_groups"][0]["momentum"]) == (0.003, 0.9)
    assert sub_epoch(TRACKS, hopped(arrived, tmp_path, changed), number=2)["lr"] == 0.003


def test_unchanged_values_are_restored(tmp_path: Path) -> None:
    """A rate set by user code is no hyperparameter, so another change does not affect it."""

    def halving(
        network: torch.nn.Module, checkpoint: Checkpoint, hyperparams: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        optimizer = tracking_it(network, checkpoint, hyperparams)
        optimizer.param_groups[0]["lr"] /= 2
        return optimizer

    spec, trainee = Spec(halving), new()
    assert sub_epoch(spec, trainee)["lr"] == 0.005
    arrived = hopped(trainee, tmp_path, {**OLD, "momentum": 0.5})
    assert sub_epoch(spec, arrived, number=1)["lr"] == 0.0025
    assert arrived.checkpoint["optimizer"]["param_groups"][0]["momentum"] == 0.5


@given(
    old=st.floats(1e-4, 1.0), new_rate=st.floats(1e-4, 1.0), name=st.sampled_from(["lr", "step_size", "eta"])
)
def test_the_name_of_a_hyper_parameter_does_not_matter(old: float, new_rate: float, name: str) -> None:
    """Old and new constructor values are compared, including rates derived from another one."""

    def groups(rate: float) -> torch.optim.SGD:
        body, head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        groups: list[dict[str, Any]] = [
            {"params": body.parameters(), "lr": rate * 0.1},
            {"params": head.parameters()},
        ]
        return torch.optim.SGD(groups, lr=rate)

    first = tracked_checkpoint.Checkpoint()
    first.track(optimizer=groups(old))
    first.settle()
    then = tracked_checkpoint.Checkpoint(
        dict(first),
        initial_values=first.initial_values,
        changes=tracked_checkpoint.changes({name: old}, {name: new_rate}),
    )
    optimizer = groups(new_rate)
    then.track(optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [new_rate * 0.1, new_rate]


Scheduled = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [3],
        ),
    ],
    ids=["step", "lambda", "exponential", "cosine", "sequential"],
)
def test_a_schedule_continues_from_the_new_rate(schedule: Scheduled) -> None:
    """Rates equal those of a training with the new rate from the start."""

    def rates(changes_at: int | None) -> Iterator[float]:
        checkpoint, rate = tracked_checkpoint.Checkpoint(), 0.01
        for number in range(3):
            if number == changes_at:
                rate = 0.003
                changed = {"lr": (0.01, 0.003)}
                checkpoint = tracked_checkpoint.Checkpoint(
                    dict(checkpoint), initial_values=checkpoint.initial_values, changes=changed
                )
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
            scheduler = schedule(optimizer)
            checkpoint.track(optimizer=optimizer, scheduler=scheduler)
            for _ in range(4):
                optimizer.step()
                yield float(optimizer.param_groups[0]["lr"])
                scheduler.step()
            checkpoint.settle()

    always, changed = list(rates(0)), list(rates(1))
    assert changed[4:] == pytest.approx(always[4:], rel=1e-9)
    assert list(rates(None))[4:] != pytest.approx(changed[4:])


def test_a_changed_rate_without_effect_fails_the_sub_epoch(tmp_path: Path) -> None:
    """User code that loads the optimizer itself restores the old rate, so the sub-epoch fails."""
    trainee = new(spec=KEEPS)
    sub_epoch(KEEPS, trainee)
    arrived = hopped(trainee, tmp_path, {**OLD, "lr": 0.003})
    message = r"lr was changed from 0.01 to 0.003, but the optimizer in checkpoint\['optimizer'\] still has 0.01, .*"
    with pytest.raises(SpecError, match=message):
        sub_epoch(KEEPS, arrived, number=1)


def test_a_rate_set_by_user_code_is_accepted(tmp_path: Path) -> None:
    """User code sets the rate after loading, or makes a new optimizer."""

    def setting(
        network: torch.nn.Module, checkpoint: Checkpoint, hyperparams: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        optimizer = keeping_it(network, checkpoint, hyperparams)
        for group in optimizer.param_groups:
            group["lr"] = hyperparams["lr"]
        return optimizer

    spec, trainee = Spec(setting, keeps=True), new(spec=KEEPS)
    sub_epoch(spec, trainee)
    assert sub_epoch(spec, hopped(trainee, tmp_path, {**OLD, "lr": 0.003}), number=1)["lr"] == 0.003
