"""Axes of parallel coordinates: where a value lies between foot and top, and what is written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cerebro.figures.frame import apart
from cerebro.figures.hyperparams import Scale, identity, numbers_of, scale

_TICKS = 4
_FEW_VALUES = 6
_DIGITS = 3
_EXACT = 6
"""Digits of a tick: in between, and at a value."""

_MOST_CATEGORIES = 12
"""Of an axis with more categories only some are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelAxis:
    """One axis. A value's place on it is 0 to 1: linear or logarithmic between `low` and `high`, or the position of
    its category.

    Attributes:
        scale: what it is of, and how its values lie on it.
        values: the distinct numbers, if they are few. is_whole: all numbers are integers.
        is_reversed: of the metric, if less is better: so that the best is on top.
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
        """Of the hyper-parameter or the metric."""
        return self.scale.name

    def place(self, value: JsonValue) -> float:
        """Where one of its values lies, 0 (foot) to 1 (top)."""
        if self.scale.kind == "category":
            return _spread(self.scale.position(value), len(self.scale.categories))
        assert isinstance(value, int | float)
        low, high, at = self.low, self.high, float(value)
        if self.scale.kind == "log":
            low, high, at = math.log(low), math.log(high), math.log(at)
        # Halves: the difference of two floats may be too large for one.
        share = (at / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return 1 - share if self.is_reversed else share

    def told(self) -> dict[str, object]:
        """For a script that reads places back into values; `absent` is the category of models without one, or None."""
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
        """(place, label) of what is written beside it; no two labels are alike."""
        if self.scale.kind == "category":
            labels = self.scale.categories
            every = math.ceil(len(labels) / _MOST_CATEGORIES)
            return [(_spread(at, len(labels)), label) for at, label in list(enumerate(labels))[::every]]
        marked = self.values or self._between()
        words = apart(marked, _EXACT if self.values or self.is_whole else _DIGITS)
        return [(self.place(value), label) for value, label in zip(marked, words, strict=True)]

    def _between(self) -> tuple[float, ...]:
        """Values at even distances from end to end; of integers the nearest ones."""
        shares = [step / _TICKS for step in range(_TICKS + 1)]
        low, high = self.low, self.high
        if self.scale.kind == "log":
            inner = [math.exp(math.log(low) * (1 - share) + math.log(high) * share) for share in shares[1:-1]]
        else:
            inner = [low * (1 - share) + high * share for share in shares[1:-1]]
        return (low, *(float(round(value)) if self.is_whole else value for value in inner), high)


def hyperparameter_axis(
    name: str, values: Sequence[JsonValue], *, tried: Sequence[JsonValue] = ()
) -> ParallelAxis:
    """The axis for these values of a hyper-parameter; see `cerebro.figures.hyperparams.scale`."""
    found = scale(name, values, tried=tried)
    if found.kind == "category":
        return ParallelAxis(scale=found)
    distinct = tuple(sorted(set(numbers_of(values))))
    return ParallelAxis(
        scale=found,
        low=distinct[0],
        high=distinct[-1],
        values=distinct if len(distinct) <= _FEW_VALUES else (),
        is_whole=all(value.is_integer() for value in distinct),
    )


def objective_axis(metric: str, values: Sequence[float], mode: str, *, is_log: bool) -> ParallelAxis:
    """The axis of the metric, the best value on top."""
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
