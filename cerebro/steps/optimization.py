"""The part of a training step after the loss: backward pass, clipping, optimizer, schedule, weight average.

`loop.train` creates an `Optimization` in each sub-epoch and tracks its objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from cerebro.errors import SpecError
from cerebro.steps.ema import NAME, WeightAverage
from cerebro.steps.options import Options
from cerebro.steps.spec import StepSpec

_OPTIMIZER = ("step", "zero_grad", "param_groups", "state_dict", "load_state_dict")
_SCHEDULER = ("step", "state_dict", "load_state_dict")


class Optimization:
    """Optimizer, schedule, gradient scaler and weight average of a model in one sub-epoch.

    Attributes:
        optimizer, scheduler: results of `configure_optimizers`.

    Raises:
        SpecError: `configure_optimizers` returned something else.
    """

    def __init__(
        self, spec: StepSpec, models: Sequence[nn.Module], hyperparams: Mapping[str, Any], options: Options
    ) -> None:
        self._options = options
        self.optimizer, self.scheduler = checked_optimizers(spec.configure_optimizers([*models], hyperparams))
        device = device_of(models)
        self._scaler = torch.amp.GradScaler(device.type) if options.precision == "fp16" else None
        self._average = WeightAverage(models, options.ema) if options.ema is not None else None
        self.optimizer.zero_grad()

    @property
    def tracked(self) -> dict[str, Any]:
        """Objects for `Checkpoint.track`, by name."""
        objects = {
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self._scaler,
            NAME: self._average,
        }
        return {name: each for name, each in objects.items() if each is not None}

    def backward(self, loss: torch.Tensor, *, is_step: bool) -> None:
        """Add the gradient of a batch, and take an optimizer step if `is_step`."""
        if self._options.accumulate > 1:
            loss = loss / self._options.accumulate
        # Techniques weight gradients by replacing this function.
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))
        if is_step:
            self._step()

    def _step(self) -> None:
        if self._options.clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self._options.clip_norm)
        is_skipped = False
        if self._scaler is None:
            self.optimizer.step()
        else:
            scale = self._scaler.get_scale()
            self._scaler.step(self.optimizer)
            self._scaler.update()
            is_skipped = (
                self._scaler.get_scale() < scale
            )  # gradients were infinite, so the optimizer did not step
        self.optimizer.zero_grad()
        if is_skipped:
            return
        if self.scheduler is not None:
            self.scheduler.step()
        if self._average is not None:
            self._average.update()


def checked_optimizers(returned: Any) -> tuple[Any, Any]:
    """Return the optimizer and the scheduler, or None, of the result of `configure_optimizers`.

    Raises:
        SpecError: it is neither an optimizer nor an optimizer with a scheduler.
    """
    expected = (
        "expected an optimizer, such as torch.optim.Adam(models[0].parameters()), or (optimizer, scheduler)"
    )
    optimizer, scheduler = returned if _is_pair(returned) else (returned, None)
    if isinstance(returned, list | tuple) and (not _is_pair(returned) or _has(scheduler, _OPTIMIZER)):
        raise SpecError(
            f"configure_optimizers() returned {len(returned)} objects ({_types(returned)}), {expected}. For several "
            "optimizers define train() in a SubEpochSpec"
        )
    if isinstance(optimizer, type) or not _has(optimizer, _OPTIMIZER):
        raise SpecError(f"configure_optimizers() returned a {_types([optimizer])}, {expected}")
    if scheduler is None:
        return optimizer, None
    if isinstance(scheduler, ReduceLROnPlateau):
        raise SpecError(
            "configure_optimizers() returned a ReduceLROnPlateau, which needs a validation metric in each step: use "
            "another schedule, or define train() in a SubEpochSpec and step it with dataloader.validation"
        )
    if isinstance(scheduler, type) or not _has(scheduler, _SCHEDULER):
        raise SpecError(
            f"configure_optimizers() returned a {_types([scheduler])} as the scheduler, {expected}"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise SpecError(
            "configure_optimizers() returned a scheduler of another optimizer: make both together"
        )
    return optimizer, scheduler


def device_of(models: Sequence[nn.Module]) -> torch.device:
    """Return the device of the first parameter; the CPU without parameters."""
    return next((each.device for model in models for each in model.parameters()), torch.device("cpu"))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _has(value: Any, names: Sequence[str]) -> bool:
    return all(hasattr(value, name) for name in names)


def _types(values: Sequence[Any]) -> str:
    return ", ".join(each.__name__ if isinstance(each, type) else type(each).__name__ for each in values)
