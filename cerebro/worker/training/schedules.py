"""Learning-rate schedules whose length has changed, as after more epochs were granted.

`tracked_checkpoint` calls it when user code tracks a schedule. One rule: a schedule continues at its present step, on
the curve of its new length. User code makes a new schedule in each sub-epoch, with the present
`dataloader.total_steps`. So the new curve is known for every schedule: the new object is stepped to the present step.
Its saved state would continue on the old curve instead, past the end.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_LENGTHS = frozenset(
    {"T_max", "T_0", "total_iters", "total_steps", "total_size", "step_size", "anneal_epochs", "end_step"}
)
_POSITIONS = frozenset({"last_epoch", "_step_count", "T_cur", "T_i"})
"""Numbers that change as a schedule is stepped."""
_RATES = frozenset({"_last_lr", "base_lrs"})
"""Numbers that a schedule takes from its optimizer."""
_MOVED = ("lr", "momentum", "betas")
"""Values of a parameter group that schedules of torch set."""

Rates = tuple[torch.optim.Optimizer, list[dict[str, Any]]]
"""An optimizer, and values for each of its parameter groups."""


def has_length(value: object) -> bool:
    """True if an object is a schedule over steps. ReduceLROnPlateau follows a metric instead."""
    return isinstance(value, LRScheduler) and not isinstance(value, ReduceLROnPlateau)


def is_custom(value: object) -> bool:
    """True for another library's or user's schedule: an object that has an optimizer, and is no schedule of torch."""
    is_torchs = isinstance(value, LRScheduler | torch.optim.Optimizer | torch.nn.Module)
    attributes = getattr(value, "__dict__", {}).values()
    return not is_torchs and any(isinstance(each, torch.optim.Optimizer) for each in attributes)


def length(created: Mapping[str, Any], *, are_floats_fixed: bool) -> dict[str, float]:
    """Return the numbers of a new schedule that set its length, by their path.

    Args:
        are_floats_fixed: True if no hyperparameter has changed. Then each float, such as the decay per step, counts.
    """
    return {
        path: value
        for path, value in created.items()
        if type(value) in (int, float)
        and (names := path.split("/"))[-1] not in _POSITIONS
        and _RATES.isdisjoint(names)
        and (type(value) is int or are_floats_fixed or names[-1] in _LENGTHS or "milestones/" in path)
    }


def steps_done(saved: Mapping[str, Any]) -> int:
    """Return the steps that a saved schedule has taken."""
    if "last_epoch" in saved:
        return int(saved["last_epoch"])
    return max(map(steps_done, saved.get("_schedulers", ())), default=0)


def advance(schedule: LRScheduler, steps: int) -> Rates:
    """Move a new schedule to a step; its optimizer is not touched.

    Returns:
        Values for the optimizer's parameter groups at this step.

    Raises:
        Exception: the schedule ends before this step, as OneCycleLR does.
    """
    optimizer = schedule.optimizer
    stand_in = copy.copy(optimizer)
    stand_in.param_groups = [
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    for group, rate in zip(stand_in.param_groups, schedule.get_last_lr(), strict=True):
        _set(group, "lr", rate)
    moved = _attached(schedule, stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer steps before these steps
        for _ in range(steps - steps_done(schedule.state_dict())):
            moved.step()
    schedule.load_state_dict(moved.state_dict())
    return optimizer, [{key: group[key] for key in _MOVED if key in group} for group in stand_in.param_groups]


def apply(rates: Rates) -> None:
    """Set the values of an optimizer's parameter groups."""
    optimizer, groups = rates
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        for key, value in values.items():
            _set(group, key, value)


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value.item() if isinstance(value, torch.Tensor) else value


def _attached(schedule: LRScheduler, optimizer: torch.optim.Optimizer) -> Any:
    """Return a copy of a schedule, with its inner schedules, for another optimizer."""
    found: Any = copy.copy(schedule)
    found.optimizer = optimizer
    if hasattr(found, "_schedulers"):
        found._schedulers = [_attached(each, optimizer) for each in found._schedulers]
    return found
