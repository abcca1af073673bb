"""A short curve of a sub-epoch's reported values, for policies that rank models by a priority score.

`model_hopper.handler` makes a recorder only if the task has `with_curve`; `InstrumentedLoader` feeds it. The curve has
at most `MAX_POINTS` points and goes into the task's result. The scores are computed in the controller. Values on a GPU
are summed there: fetching each one would synchronize the GPU at every batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from cerebro.contract.tasks.results import MAX_POINTS, Curve, CurvePoint
from cerebro.contract.values import has_masked


class _Sum(NamedTuple):
    """Consecutive values: mean time, sum and number."""

    seconds: float
    value: Any
    num_values: int

    def with_(self, other: _Sum) -> _Sum:
        num_values = self.num_values + other.num_values
        seconds = (self.seconds * self.num_values + other.seconds * other.num_values) / num_values
        return _Sum(seconds, self.value + other.value, num_values)


class CurveRecorder:
    """Records one sub-epoch's curve, for the first reported name.

    Args:
        began: start of training, by `clock`, in seconds.
    """

    def __init__(self, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._began, self._clock = began, clock
        self._name = ""
        self._sums: list[_Sum] = []
        self._capacity = 1
        """Number of values in a full sum."""
        self._last: Any = None

    def record(self, values: Mapping[str, Any]) -> None:
        """Record reported values. Ignores values that are not single numbers."""
        self._name = self._name or next(iter(values), "")
        value = _number(values.get(self._name))
        if value is None:
            return
        self._last = value
        new = _Sum(self._clock() - self._began, value, 1)
        if self._sums and self._sums[-1].num_values < self._capacity:
            self._sums[-1] = self._sums[-1].with_(new)
            return
        if len(self._sums) == MAX_POINTS:
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [first.with_(second) for first, second in pairs]
            self._capacity *= 2
        self._sums.append(new)

    def curve(self) -> Curve | None:
        """Return the curve; `None` if no number was reported. Synchronizes with the GPU.

        It has diverged if the last value is not finite, or no point is. One NaN alone is no divergence, because
        some losses are undefined for some batches; its point is dropped.
        """
        if not self._sums:
            return None
        points = [
            CurvePoint(each.seconds, float(each.value) / each.num_values, each.num_values)
            for each in self._sums
        ]
        finite = tuple(point for point in points if math.isfinite(point.mean))
        has_diverged = not finite or not math.isfinite(float(self._last))
        return Curve(name=self._name, points=finite, has_diverged=has_diverged)


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        # A copy, because user code may later change the tensor in place, for example a running sum.
        return value.detach().reshape(()).to(torch.float32, copy=True)
    try:
        return None if has_masked(value) else float(value)
    except (TypeError, ValueError):
        return None
