"""Axes of `cerebro.figures.parallel`: positions of values from 0 to 1, and tick labels. Pure; draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cerebro.figures.frame import distinct_labels
from cerebro.figures.hyperparams import Scale, identity, numbers_of, scale

_TICKS = 4
_FEW_VALUES = 6
_DIGITS = 3
_EXACT = 6
"""Digits of a tick label: between values, and at a value."""

_MAX_CATEGORIES = 12
"""An axis with more categories labels only some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelAxis:
    """One axis. Positions are 0 to 1: linear or logarithmic between `low` and `high`, or by category.

    Attributes:
        scale: name of the hyperparameter or metric, and kind of the axis.
        values: the distinct numbers, if they are few.
        is_whole: True if all numbers are integers.
        is_metric: True for the axis of the metric.
        is_reversed: True for a metric to minimize, whose best value is on top.
    """

    scale: Scale
    low: float = 0.0
    high: float = 1.0
    values: tuple[float, ...] = ()
    is_whole: bool = False
    is_metric: bool = False
    is_reversed: bool = False

    @property
    def name(self) -> str:
        """Name of the hyperparameter or the metric."""
        return self.scale.name

    def position(self, value: JsonValue) -> float:
        """Return the position of a value, 0 (bottom) to 1 (top)."""
        if self.scale.kind == "category":
            return _spread(self.scale.position(value), len(self.scale.categories))
        assert isinstance(value, int | float)
        low, high, at = self.low, self.high, float(value)
        if self.scale.kind == "log":
            low, high, at = math.log(low), math.log(high), math.log(at)
        # Halved, because the difference of two floats can overflow.
        share = (at / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return 1 - share if self.is_reversed else share

    def describe(self) -> dict[str, object]:
        """Describe the axis for the script that converts positions to values.

        `absent` is the category of models without a value, or `None`.
        """
        return {
            "name": self.name,
            "kind": self.scale.kind,
            "low": self.low,
            "high": self.high,
            "categories": list(self.scale.categories),
            "absent": self.scale.positions.get(identity(None)),
            "values": list(self.values),
            "is_metric": self.is_metric,
            "is_reversed": self.is_reversed,
        }

    def ticks(self) -> list[tuple[float, str]]:
        """Return (position, label) of the ticks, with distinct labels."""
        if self.scale.kind == "category":
            labels = self.scale.categories
            every = math.ceil(len(labels) / _MAX_CATEGORIES)
            return [(_spread(at, len(labels)), label) for at, label in list(enumerate(labels))[::every]]
        marked = self.values or self._between()
        words = distinct_labels(marked, _EXACT if self.values or self.is_whole else _DIGITS)
        return [(self.position(value), label) for value, label in zip(marked, words, strict=True)]

    def _between(self) -> tuple[float, ...]:
        """Return values at even distances; integers are rounded."""
        shares = [step / _TICKS for step in range(_TICKS + 1)]
        low, high = self.low, self.high
        if self.scale.kind == "log":
            inner = [math.exp(math.log(low) * (1 - share) + math.log(high) * share) for share in shares[1:-1]]
        else:
            inner = [low * (1 - share) + high * share for share in shares[1:-1]]
        return (low, *(float(round(value)) if self.is_whole else value for value in inner), high)


def hyperparameter_axis(
    name: str, values: Sequence[JsonValue], *, all_values: Sequence[JsonValue] = ()
) -> ParallelAxis:
    """Return the axis for values of a hyperparameter; see `cerebro.figures.hyperparams.scale`."""
    axis_scale = scale(name, values, all_values=all_values)
    if axis_scale.kind == "category":
        return ParallelAxis(scale=axis_scale)
    distinct = tuple(sorted(set(numbers_of(values))))
    return ParallelAxis(
        scale=axis_scale,
        low=distinct[0],
        high=distinct[-1],
        values=distinct if len(distinct) <= _FEW_VALUES else (),
        is_whole=all(value.is_integer() for value in distinct),
    )


def objective_axis(metric: str, values: Sequence[float], mode: str, *, is_log: bool) -> ParallelAxis:
    """Return the axis of the metric, with the best value on top."""
    low, high = min(values), max(values)
    return ParallelAxis(
        scale=Scale(name=metric, kind="log" if is_log and low > 0 else "linear"),
        low=low,
        high=high,
        values=(low,) if low == high else (),
        is_metric=True,
        is_reversed=mode == "min",
    )


def _spread(position: int, count: int) -> float:
    return position / (count - 1) if count > 1 else 0.5
