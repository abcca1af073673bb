"""Hyperparameters as axes: which ones vary, and which need a category or logarithmic axis. Pure.

The figures of hyperparameters and the page's table of models use it, so all choose the same axis and the same words.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from pydantic import JsonValue

from cerebro.figures.models import ModelSummary

Kind = Literal["linear", "log", "category"]

_LOG_RATIO = 10.0
"""Minimum ratio of the largest to the smallest number for a logarithmic axis."""

_FEW = 2
"""Numbers without a middle, which could show whether the steps are factors."""

_LEAN = 0.1
"""Preference for a logarithmic axis, as additional distance of the median from its middle. Values that a user varies
by factors rarely have even steps, and the median of a few random values is off either middle.
"""

_ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The axis of one hyperparameter.

    Attributes:
        name: the hyperparameter.
        kind: ``category`` unless all values are finite numbers.
        categories: distinct labels of the distinct values, in the axis's order; none for numbers.
        positions: `identity` of a value -> position of its category.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    positions: Mapping[Hashable, int] = field(default_factory=dict)

    def position(self, value: JsonValue) -> int:
        """Return the position of a value's category."""
        return self.positions[identity(value)]


def varying(rows: Iterable[ModelSummary]) -> tuple[str, ...]:
    """Return the hyperparameters that differ between models, in the order of their first use."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row.hyperparams)
    return tuple(name for name in names if _differ(values_of(name, rows)))


def values_of(name: str, rows: Iterable[ModelSummary]) -> list[JsonValue]:
    """Return a hyperparameter's value in each model; `None` if a model lacks it."""
    return [row.hyperparams.get(name) for row in rows]


def scale(name: str, values: Sequence[JsonValue], *, all_values: Sequence[JsonValue] = ()) -> Scale:
    """Choose the axis for a hyperparameter's values; `None` is the value of a model without it.

    Positive numbers that span a factor of ten get a logarithmic axis, unless their median is clearly closer to the
    middle of a linear one: 0.001, 0.01, 0.1 are logarithmic, 0.1, 0.5, 1.0 linear.

    Args:
        all_values: values of all models if only some are drawn, so that all figures choose the same axis.
    """
    numbers = numbers_of(values)
    if len(numbers) < len(values) or not numbers:
        ordered = _ordered(values)
        positions = {key: position for position, key in enumerate(ordered)}
        return Scale(name=name, kind="category", categories=_labels(ordered.values()), positions=positions)
    numbers += numbers_of(all_values)
    low, high = min(numbers), max(numbers)
    if low <= 0 or high < _LOG_RATIO * low:
        return Scale(name=name, kind="linear")
    middle = median(sorted(set(numbers)))
    on_log = math.log(middle / low) / math.log(high / low)
    on_linear = (middle - low) / (high - low)
    is_log = len(set(numbers)) <= _FEW or abs(on_log - 0.5) < abs(on_linear - 0.5) + _LEAN
    return Scale(name=name, kind="log" if is_log else "linear")


def is_number(value: JsonValue) -> bool:
    """Return True for a finite number that fits a float; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def numbers_of(values: Iterable[JsonValue]) -> list[float]:
    """Return the values that are numbers."""
    return [float(value) for value in values if isinstance(value, int | float) and is_number(value)]


def identity(value: JsonValue) -> Hashable:
    """Return a key that equal values share: 1 equals 1.0, but neither "1" nor true."""
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    if isinstance(value, list | dict):
        return (list, json.dumps(value, sort_keys=True))
    return (type(value) if isinstance(value, bool | str | None) else float, value)


def word(value: JsonValue) -> str:
    """Format a value for readers: six significant digits; lists and objects as JSON."""
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _differ(values: Sequence[JsonValue]) -> bool:
    first = identity(values[0])
    return any(identity(value) != first for value in values)


def _ordered(values: Sequence[JsonValue]) -> dict[Hashable, JsonValue]:
    """Return the distinct values by identity: numbers ascending, texts by alphabet, then absence."""

    def sort_key(value: JsonValue) -> tuple[int, float, str]:
        if is_number(value):
            return (0, numbers_of([value])[0], "")
        return (2, 0.0, "") if value is None else (1, 0.0, word(value))

    distinct = {identity(value): value for value in reversed(values)}
    return dict(sorted(distinct.items(), key=lambda item: sort_key(item[1])))


def _labels(values: Iterable[JsonValue]) -> tuple[str, ...]:
    """Return distinct labels; JSON for values whose texts are the same."""
    found = [(value, word(value)) for value in values]
    count = Counter(label for _, label in found)
    return tuple(
        label if count[label] == 1 or value is None else json.dumps(value, ensure_ascii=False)
        for value, label in found
    )
