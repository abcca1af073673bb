"""Axes of parallel coordinates: where a value lies between foot and top, and what is written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import JsonValue

from cerebro.analysis import numbers_of, scale, word
from cerebro.figures.frame import number

_TICKS = 4
_FEW_VALUES = 6
_MOST_CATEGORIES = 12
"""Of an axis with more categories only some are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelAxis:
    """One axis. A value's place on it is 0 to 1: linear or logarithmic between `low` and `high`, or the position of
    its category.

    Attributes:
        kind: ``linear``, ``log`` or ``category``.
        values: the distinct numbers, if they are few.
        is_reversed: of the metric, if less is better: so that the best is on top.
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 1.0
    categories: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    is_metric: bool = False
    is_reversed: bool = False

    def place(self, value: JsonValue) -> float:
        """Where a value lies, 0 (foot) to 1 (top)."""
        if self.kind == "category":
            return _spread(self.categories.index(word(value)), len(self.categories))
        assert isinstance(value, int | float)
        low, high, at = self.low, self.high, float(value)
        if self.kind == "log":
            low, high, at = math.log(low), math.log(high), math.log(at)
        share = (at - low) / (high - low) if high > low else 0.5
        return 1 - share if self.is_reversed else share

    def told(self) -> dict[str, object]:
        """For a script that reads places back into values."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    def ticks(self) -> list[tuple[float, str]]:
        """(place, label) of what is written beside it."""
        if self.kind == "category":
            every = math.ceil(len(self.categories) / _MOST_CATEGORIES)
            named = list(enumerate(self.categories))[::every]
            return [(_spread(position, len(self.categories)), label) for position, label in named]
        if self.values:
            return [(self.place(value), number(value)) for value in self.values]
        found = []
        for step in range(_TICKS + 1):
            share = step / _TICKS
            if self.kind == "log":
                value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
            else:
                value = self.low + share * (self.high - self.low)
            found.append((1 - share if self.is_reversed else share, f"{value:.3g}"))
        return found


def hyperparameter_axis(name: str, values: Sequence[JsonValue]) -> ParallelAxis:
    """The axis for these values of a hyper-parameter; one that a model lacks is `None`."""
    found = scale(name, values)
    axis = ParallelAxis(name=name, kind=found.kind, categories=found.categories)
    numbers = numbers_of(values)
    if axis.categories:
        return axis
    distinct = tuple(sorted(set(numbers)))
    few = distinct if len(distinct) <= _FEW_VALUES else ()
    return replace(axis, low=distinct[0], high=distinct[-1], values=few)


def objective_axis(metric: str, values: Sequence[float], mode: str, *, is_log: bool) -> ParallelAxis:
    """The axis of the metric, the best value on top."""
    low, high = min(values), max(values)
    kind = "log" if is_log and low > 0 else "linear"
    same = (low,) if low == high else ()
    return ParallelAxis(
        name=metric, kind=kind, low=low, high=high, values=same, is_metric=True, is_reversed=mode == "min"
    )


def _spread(position: int, count: int) -> float:
    return position / (count - 1) if count > 1 else 0.5
