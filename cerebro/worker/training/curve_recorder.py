"""A short curve of a sub-epoch's reported values, for policies that rank models by a priority score.

The handler of sub-epochs makes a recorder only if the task has `with_curve`. The scores are computed in the
controller.

Values on a GPU are summed there: fetching each one would synchronize the GPU at every batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from cerebro.contract.tasks import MAX_POINTS, Curve, CurvePoint
from cerebro.contract.values import has_masked


class _Sum(NamedTuple):
    """Consecutive values: mean time, sum and count."""

    seconds: float
    value: Any
    number: int

    def with_(self, other: _Sum) -> _Sum:
        number = self.number + other.number
        seconds = (self.seconds * self.number + other.seconds * other.number) / number
        return _Sum(seconds, self.value + other.value, number)


class CurveRecorder:
    """Records one sub-epoch's curve, for the first reported name.

    Args:
        began: start of training, by `clock`, in seconds.
    """

    def __init__(self, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._began, self._clock = began, clock
        self._name = ""
        self._sums: list[_Sum] = []
        self._each = 1
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
        if self._sums and self._sums[-1].number < self._each:
            self._sums[-1] = self._sums[-1].with_(new)
            return
        if len(self._sums) == MAX_POINTS:
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [first.with_(second) for first, second in pairs]
            self._each *= 2
        self._sums.append(new)

    def curve(self) -> Curve | None:
        """Return the curve; `None` if no number was reported. Synchronizes with the GPU.

        It has diverged if the last value is not finite, or no point is. One NaN alone is no divergence, because
        some losses are undefined for some batches; its point is dropped.
        """
        if not self._sums:
            return None
        points = [
            CurvePoint(each.seconds, float(each.value) / each.number, each.number) for each in self._sums
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
