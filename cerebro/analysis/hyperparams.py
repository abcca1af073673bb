"""Hyper-parameters as axes: which of them vary, which are numbers, which are read best on a logarithmic axis."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import JsonValue

from cerebro.analysis.summary import ModelSummary

Kind = Literal["linear", "log", "category"]

_LOG_RATIO = 10.0
"""Numbers that span less are read well on a linear axis."""

_FEW = 2
"""Two numbers have no middle that could say whether their steps are factors."""

_ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The axis of one hyper-parameter.

    Attributes:
        name: the hyper-parameter.
        kind: ``category`` unless all values are finite numbers.
        categories: the distinct values in words, in the order of the axis; empty for numbers.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()


def varying(rows: Iterable[ModelSummary]) -> tuple[str, ...]:
    """Names of the hyper-parameters that differ between models, in the order in which they are first met."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row.hyperparams)
    return tuple(name for name in names if len({word(row.hyperparams.get(name)) for row in rows}) > 1)


def scale(name: str, values: Sequence[JsonValue]) -> Scale:
    """How to draw the values of a hyper-parameter; one that a model lacks is `None`.

    Positive numbers that span a factor of ten get a logarithmic axis if their median lies nearer to its middle than
    to that of a linear one: 0.001, 0.01, 0.1 do, 0.1, 0.5, 1.0 do not.
    """
    numbers = numbers_of(values)
    if len(numbers) < len(values) or not numbers:
        return Scale(name=name, kind="category", categories=_ordered(values))
    low, high = min(numbers), max(numbers)
    if low <= 0 or high < _LOG_RATIO * low:
        return Scale(name=name, kind="linear")
    middle = median(sorted(set(numbers)))
    on_log = math.log(middle / low) / math.log(high / low)
    on_linear = (middle - low) / (high - low)
    is_log = len(set(numbers)) <= _FEW or abs(on_log - 0.5) < abs(on_linear - 0.5)
    return Scale(name=name, kind="log" if is_log else "linear")


def is_number(value: JsonValue) -> bool:
    """A finite number; true and false are words."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def numbers_of(values: Iterable[JsonValue]) -> list[float]:
    """Those of the values that are numbers."""
    return [float(value) for value in values if isinstance(value, int | float) and is_number(value)]


def word(value: JsonValue) -> str:
    """A value as text: six significant digits; lists and tables as JSON."""
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ordered(values: Sequence[JsonValue]) -> tuple[str, ...]:
    """Numbers ascending, then words by alphabet, then absence."""

    def place(value: JsonValue) -> tuple[int, float, str]:
        if is_number(value):
            return (0, numbers_of([value])[0], "")
        return (2, 0.0, "") if value is None else (1, 0.0, word(value))

    return tuple(dict.fromkeys(word(value) for value in sorted(values, key=place)))
