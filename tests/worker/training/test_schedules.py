"""A schedule whose length changed continues at its step on the new curve; without a change it continues as before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cerebro.errors import SpecError
from cerebro.worker.training.tracked_checkpoint import Checkpoint

S = torch.optim.lr_scheduler
Optimizer = torch.optim.Optimizer
Make = Callable[[Optimizer, int], Any]


def _warm_cosine(optimizer: Optimizer, total: int) -> Any:
    warm = S.LinearLR(optimizer, start_factor=0.1, total_iters=total // 4)
    return S.SequentialLR(optimizer, [warm, S.CosineAnnealingLR(optimizer, total - total // 4)], [total // 4])


def _chained(optimizer: Optimizer, total: int) -> Any:
    return S.ChainedScheduler(
        [S.LinearLR(optimizer, total_iters=total), S.MultiStepLR(optimizer, [total // 2, 3 * total // 4])]
    )


class UserSchedule(S.LRScheduler):
    """A user-defined schedule."""

    def __init__(self, optimizer: Optimizer, total: int) -> None:
        self.total = total
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [float(rate) * (1 - self.last_epoch / self.total) for rate in self.base_lrs]


class Decay:
    """A function of the step with a float attribute."""

    def __init__(self, total: int) -> None:
        self.slope = 1 / total

    def __call__(self, step: int) -> float:
        return 1 - step * self.slope


class Table(S.LRScheduler):
    """A schedule with a table of rates."""

    def __init__(self, optimizer: Optimizer, total: int) -> None:
        self.rates = [0.1 * (1 - step / total) for step in range(total + 1)]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [self.rates[self.last_epoch] for _ in self.base_lrs]


SCHEDULES: dict[str, Make] = {
    "onecycle": lambda optimizer, total: S.OneCycleLR(optimizer, 0.1, total_steps=total + 1),
    "cosine": S.CosineAnnealingLR,
    "polynomial": S.PolynomialLR,
    "linear": lambda optimizer, total: S.LinearLR(optimizer, 1.0, 0.0, total_iters=total),
    "float": lambda optimizer, total: S.LinearLR(optimizer, 1.0, 0.0, total_iters=0.9 * total),  # type: ignore[arg-type]
    "step": lambda optimizer, total: S.StepLR(optimizer, total // 4),
    "multistep": lambda optimizer, total: S.MultiStepLR(optimizer, [total // 2, 3 * total // 4]),
    "restarts": lambda optimizer, total: S.CosineAnnealingWarmRestarts(optimizer, total // 2),
    "cyclic": lambda optimizer, total: S.CyclicLR(optimizer, 0.01, 0.1, step_size_up=total // 2),
    "averaging": lambda optimizer, total: torch.optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=total),
    "sequential": _warm_cosine,
    "chained": _chained,
    "own": UserSchedule,
    "exponential": lambda optimizer, total: S.ExponentialLR(optimizer, 0.01 ** (1 / total)),
    "callable": lambda optimizer, total: S.LambdaLR(optimizer, Decay(total)),
    "table": Table,
}


def optimizer_and_schedule(make: Make, total: int) -> tuple[Optimizer, Any]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    return optimizer, make(optimizer, total)


def rates(optimizer: Optimizer, schedule: Any, steps: int) -> list[float]:
    """Return the rate and the momentum of each step."""
    found = []
    for _ in range(steps):
        optimizer.step()
        found += [optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]]
        schedule.step()
    return found


def trained(make: Make, total: int, steps: int) -> Checkpoint:
    """Return the checkpoint after `steps` steps of a schedule."""
    checkpoint = Checkpoint()
    optimizer, schedule = optimizer_and_schedule(make, total)
    checkpoint.track(optimizer=optimizer, schedule=schedule)
    rates(optimizer, schedule, steps)
    checkpoint.settle()
    return checkpoint


def tracking(checkpoint: Checkpoint, make: Make, total: int, how: str = "together") -> tuple[Optimizer, Any]:
    optimizer, schedule = optimizer_and_schedule(make, total)
    if how == "together":
        checkpoint.track(optimizer=optimizer, schedule=schedule)
    elif how == "turned":
        checkpoint.track(schedule=schedule, optimizer=optimizer)
    else:
        for name, value in (("schedule", schedule), ("optimizer", optimizer))[:: -1 if how == "apart" else 1]:
            checkpoint.track(**{name: value})
    return optimizer, schedule


@pytest.mark.parametrize("how", ["together", "turned", "apart", "schedule first"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_longer_training_continues_on_the_longer_curve(name: str, how: str) -> None:
    """After 8 of 8 steps, 8 more are granted. Their rates are steps 8 to 15 of a schedule for 16."""
    make = SCHEDULES[name]
    expected = rates(*optimizer_and_schedule(make, 16), 16)[16:]
    checkpoint = trained(make, 8, 8)
    first = rates(*tracking(checkpoint, make, 16, how), 5)
    checkpoint.settle()
    rest = rates(*tracking(checkpoint, make, 16, how), 3)  # after a hop without changes
    assert first + rest == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_follows_a_new_length_of_training(name: str) -> None:
    """Covers longer and shorter lengths."""
    make = SCHEDULES[name]
    for before, now in ((8, 16), (16, 8)):
        expected = rates(*optimizer_and_schedule(make, now), 7)[10:]
        assert rates(*tracking(trained(make, before, 5), make, now), 2) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("now", [16, 32])
@pytest.mark.parametrize("name", SCHEDULES)
def test_user_code_may_advance_a_new_schedule_before_tracking_it(name: str, now: int) -> None:
    """No step is taken twice, whether the length changes or not. Compares learning rates only."""
    make = SCHEDULES[name]
    checkpoint = trained(make, 16, 7)
    optimizer, schedule = optimizer_and_schedule(make, now)
    rates(optimizer, schedule, 7)
    checkpoint.track(optimizer=optimizer, schedule=schedule)
    found, expected = rates(optimizer, schedule, 4), rates(*optimizer_and_schedule(make, now), 11)[14:]
    assert found[::2] == pytest.approx(expected[::2], abs=1e-9)


def test_a_schedule_that_ends_before_its_step_is_refused() -> None:
    """The error has the name, both lengths and the step."""
    make = SCHEDULES["onecycle"]
    checkpoint = trained(make, 16, 12)
    with pytest.raises(
        SpecError, match=r"OneCycleLR changed .*total_steps from 17 to 9.*cannot continue at step 12"
    ):
        tracking(checkpoint, make, 8)


def test_a_schedule_created_after_its_optimizer_was_restored_is_refused() -> None:
    """It would start from the last rate of the old curve. Without a change of length it is accepted."""
    for total, is_refused in ((8, False), (16, True)):
        checkpoint = trained(S.CosineAnnealingLR, 8, 6)
        optimizer, _ = optimizer_and_schedule(S.ConstantLR, 1)
        optimizer = torch.optim.SGD(optimizer.param_groups[0]["params"], lr=0.1, momentum=0.9)
        checkpoint.track(optimizer=optimizer)
        schedule = S.CosineAnnealingLR(optimizer, total)
        if is_refused:
            with pytest.raises(SpecError, match="made after its optimizer was restored"):
                checkpoint.track(schedule=schedule)
        else:
            checkpoint.track(schedule=schedule)
            assert (
                rates(optimizer, schedule, 2)
                == rates(*optimizer_and_schedule(S.CosineAnnealingLR, 8), 8)[12:]
            )


def test_a_learning_rate_tensor_stays_a_tensor() -> None:
    """Compiled optimizers use tensors."""

    def make(optimizer: Optimizer, total: int) -> Any:
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
        return S.CosineAnnealingLR(optimizer, total)

    optimizer, _ = tracking(trained(make, 8, 8), make, 16)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05)


def test_rate_and_length_can_change_together() -> None:
    checkpoint = trained(S.CosineAnnealingLR, 8, 8)
    checkpoint.changes = {"lr": (0.1, 0.2)}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.2, momentum=0.9)
    schedule = S.CosineAnnealingLR(optimizer, 16)
    checkpoint.track(optimizer=optimizer, schedule=schedule)
    assert rates(optimizer, schedule, 1)[0] == pytest.approx(0.1)


class CustomSchedule:
    """A schedule like those of timm: not torch's class, and its state has its length."""

    def __init__(self, optimizer: Optimizer, total: int) -> None:
        self.optimizer, self.total, self.num_steps = optimizer, total, 0
        self.base = float(optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        self.num_steps += 1
        cosine = math.cos(math.pi * self.num_steps / self.total)
        self.optimizer.param_groups[0]["lr"] = self.base * (1 + cosine) / 2

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("is_made_later", [False, True])
@pytest.mark.parametrize("total", [8, 16])
def test_a_schedule_that_is_not_torchs_continues_on_its_new_curve(total: int, *, is_made_later: bool) -> None:
    """Its restored length would end the curve at step 8, from where cosine climbs again. Its rate is restored."""
    checkpoint = trained(CustomSchedule, 8, 6)
    optimizer, schedule = optimizer_and_schedule(CustomSchedule, total)
    checkpoint.track(optimizer=optimizer)
    checkpoint.track(schedule=CustomSchedule(optimizer, total) if is_made_later else schedule)
    schedule = checkpoint.tracked["schedule"]
    found, expected = (
        rates(optimizer, schedule, total - 6),
        rates(*optimizer_and_schedule(CustomSchedule, total), total)[12:],
    )
    assert found[2::2] == pytest.approx(expected[2::2])
