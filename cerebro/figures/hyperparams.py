"""Hyper-parameters as axes: which of them vary, which are numbers, which are read best on a logarithmic axis."""

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
"""Numbers that span less are read well on a linear axis."""

_FEW = 2
"""Two numbers have no middle that could say whether their steps are factors."""

_LEAN = 0.1
"""Towards a logarithmic axis: so much further from its middle the median may lie. What a user lets vary over factors
rarely varies by sums, and a few values drawn at random have a median that is off either middle."""

_ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The axis of one hyper-parameter.

    Attributes:
        name: the hyper-parameter.
        kind: ``category`` unless all values are finite numbers.
        categories: the distinct values in words, no two alike, in the order of the axis; empty for numbers.
        positions: of a category, by `identity`.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    positions: Mapping[Hashable, int] = field(default_factory=dict)

    def position(self, value: JsonValue) -> int:
        """Which category one of the values is."""
        return self.positions[identity(value)]


def varying(rows: Iterable[ModelSummary]) -> tuple[str, ...]:
    """Names of the hyper-parameters that differ between models, in the order in which they are first met."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row.hyperparams)
    return tuple(name for name in names if _differ(values_of(name, rows)))


def values_of(name: str, rows: Iterable[ModelSummary]) -> list[JsonValue]:
    """A hyper-parameter's value in each model; `None` where it has none."""
    return [row.hyperparams.get(name) for row in rows]


def scale(name: str, values: Sequence[JsonValue], *, tried: Sequence[JsonValue] = ()) -> Scale:
    """How to draw the values of a hyper-parameter; one that a model lacks is `None`.

    Positive numbers that span a factor of ten get a logarithmic axis unless their median lies clearly nearer to the
    middle of a linear one: 0.001, 0.01, 0.1 do, 0.1, 0.5, 1.0 do not.

    Args:
        tried: values of all models, if only those of some are drawn: so that all figures choose the same axis.
    """
    numbers = numbers_of(values)
    if len(numbers) < len(values) or not numbers:
        ordered = _ordered(values)
        positions = {key: position for position, key in enumerate(ordered)}
        return Scale(name=name, kind="category", categories=_labels(ordered.values()), positions=positions)
    numbers += numbers_of(tried)
    low, high = min(numbers), max(numbers)
    if low <= 0 or high < _LOG_RATIO * low:
        return Scale(name=name, kind="linear")
    middle = median(sorted(set(numbers)))
    on_log = math.log(middle / low) / math.log(high / low)
    on_linear = (middle - low) / (high - low)
    is_log = len(set(numbers)) <= _FEW or abs(on_log - 0.5) < abs(on_linear - 0.5) + _LEAN
    return Scale(name=name, kind="log" if is_log else "linear")


def is_number(value: JsonValue) -> bool:
    """A finite number that a float can hold; true and false are words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def numbers_of(values: Iterable[JsonValue]) -> list[float]:
    """Those of the values that are numbers."""
    return [float(value) for value in values if isinstance(value, int | float) and is_number(value)]


def identity(value: JsonValue) -> Hashable:
    """What two values share if they are the same: 1 and 1.0 are, 1 and "1" and true are not."""
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    if isinstance(value, list | dict):
        return (list, json.dumps(value, sort_keys=True))
    return (type(value) if isinstance(value, bool | str | None) else float, value)


def word(value: JsonValue) -> str:
    """A value as text, to be read and not to be compared: six significant digits; lists and tables as JSON."""
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
    """The distinct values by identity: numbers ascending, then words by alphabet, then absence."""

    def place(value: JsonValue) -> tuple[int, float, str]:
        if is_number(value):
            return (0, numbers_of([value])[0], "")
        return (2, 0.0, "") if value is None else (1, 0.0, word(value))

    distinct = {identity(value): value for value in reversed(values)}
    return dict(sorted(distinct.items(), key=lambda item: place(item[1])))


def _labels(values: Iterable[JsonValue]) -> tuple[str, ...]:
    """Words for distinct values; those of which several would read alike in full, as JSON."""
    found = [(value, word(value)) for value in values]
    count = Counter(label for _, label in found)
    return tuple(
        label if count[label] == 1 or value is None else json.dumps(value, ensure_ascii=False)
        for value, label in found
    )
