"""Distributions of hyperparameters as users write them, and the conversion of their values. Pure functions.

`space` and `grid` use the values. Each value becomes a JSON value here, or is refused with the hyperparameter's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import EnumType
from numbers import Real
from typing import Any, SupportsFloat

from pydantic import JsonValue

from cerebro.contract import search as data
from cerebro.contract.search import MAX_CONFIGURATIONS, ChoiceOf, LogUniform, RandInt, Uniform
from cerebro.contract.values import MAX_INTEGER, carried, has_masked, is_array, listed
from cerebro.errors import SearchSpaceError

_MAX_SHOWN = 200


@dataclass(frozen=True)
class Distribution:
    """Distribution of a hyperparameter; created by `uniform`, `loguniform`, `randint` and `choice`."""

    data: data.Distribution

    def when(self, /, **conditions: Any) -> Distribution:
        """Return the distribution of a hyperparameter that only some training configs have.

        Args:
            conditions: an earlier hyperparameter and its value, or a list of values, of which one is enough. All
                conditions must be met. A config without the earlier hyperparameter doesn't meet its condition.

        Raises:
            SearchSpaceError: no condition is given, a condition has no value, or a hyperparameter is named twice.

        Example:
            >>> space = {
            ...     "encoder": choice("resnet18", "vit"),
            ...     "patch": choice(4, 8).when(encoder="vit"),
            ...     "batch_size": 32,
            ... }
            >>> from cerebro.client.search import configurations
            >>> configurations(space)[:2]
            [{'encoder': 'resnet18', 'batch_size': 32}, {'encoder': 'vit', 'patch': 4, 'batch_size': 32}]
        """
        if not conditions:
            raise SearchSpaceError(
                'when() has no condition: name an earlier hyperparameter, as in when(encoder="vit")'
            )
        if twice := self.data.when.keys() & conditions.keys():
            name = min(twice)
            raise SearchSpaceError(
                f"when({name}=...) is given twice: list all its values in one call, as in when({name}=[...])"
            )
        found = {}
        for name, value in conditions.items():
            values = elements_of(f"when({name})", value) if is_axis(value) else [value]
            if not values:
                raise SearchSpaceError(
                    f"when({name}=[]) has no value: give at least one, or leave the condition out"
                )
            found[name] = tuple(as_json(f"in when({name}=...)", each) for each in values)
        return Distribution(self.data.model_copy(update={"when": {**self.data.when, **found}}))


def uniform(low: SupportsFloat, high: SupportsFloat, *, step: SupportsFloat | None = None) -> Distribution:
    """Sample a float uniformly between `low` and `high`.

    Args:
        low: smallest value.
        high: largest value, not below `low`.
        step: distance of the values: low, low + step, ..., high. Default: any float.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: a bound is not finite, `low` exceeds `high`, or `step` does not divide the range.

    Example:
        >>> space = {"dropout": uniform(0.0, 0.5, step=0.1), "batch_size": 32}
    """
    ends = _ends("uniform", low, high)
    if step is None:
        return Distribution(Uniform(low=ends[0], high=ends[1]))
    distance = _step("uniform", low, high, step)
    return Distribution(Uniform(low=ends[0], high=ends[1], step=float(distance)))


def loguniform(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """Sample a positive float whose logarithm is uniform, for scales such as learning rates.

    Args:
        low: smallest value, above 0.
        high: largest value, not below `low`.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: a bound is not finite or not positive, or `low` exceeds `high`.

    Example:
        >>> space = {"lr": loguniform(1e-4, 1e-1), "batch_size": 32}
    """
    ends = _ends("loguniform", low, high)
    if ends[0] <= 0:
        raise SearchSpaceError(f"loguniform({low}, {high}): the lower end must be positive")
    return Distribution(LogUniform(low=ends[0], high=ends[1]))


def randint(
    low: SupportsFloat, high: SupportsFloat, *, step: SupportsFloat = 1, log: bool = False
) -> Distribution:
    """Sample an integer from `low` to `high`, both included.

    Args:
        low: smallest value.
        high: largest value, not below `low`.
        step: distance of the values: low, low + step, ..., high.
        log: True to sample the logarithm uniformly, for scales such as widths; without `step`.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: a bound is not an integer within 2**53, `low` exceeds `high`, `step` does not divide the
            range, or `log` is set and `low` is below 1.

    Example:
        >>> space = {"layers": randint(2, 12, step=2), "width": randint(32, 1024, log=True), "batch_size": 32}
    """
    ends = _ends("randint", low, high)
    if any(end % 1 for end in ends):
        raise SearchSpaceError(f"randint({low}, {high}): both ends must be whole numbers")
    if max(map(abs, ends)) > MAX_INTEGER:
        raise SearchSpaceError(f"randint({low}, {high}): numbers beyond 2**53 cannot be stored exactly")
    distance = _step("randint", low, high, step)
    if distance % 1:
        raise SearchSpaceError(f"randint({low}, {high}, step={step}): the step must be a whole number")
    if log and ends[0] < 1:
        raise SearchSpaceError(f"randint({low}, {high}, log=True): the lower end must be at least 1")
    if log and distance != 1:
        raise SearchSpaceError(
            f"randint({low}, {high}, step={step}, log=True): leave out `step` or `log`, or list the values in choice()"
        )
    return Distribution(RandInt(low=int(ends[0]), high=int(ends[1]), step=int(distance), log=bool(log)))


def choice(*values: Any) -> Distribution:
    """Sample one of the values, each with equal probability.

    Args:
        values: JSON values (numbers, texts, booleans, `None`, lists and dicts) or Enum members, or one iterable, array
            or Enum of them. Of an Enum member, training code receives the value.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: no values are given, or a value is not a JSON value.

    Example:
        >>> space = {"activation": choice("relu", "gelu"), "width": choice([32, 64]), "batch_size": 32}
    """
    options: Any = values
    if len(values) == 1 and _is_collection(values[0]):
        options = values[0] if is_array(values[0]) or isinstance(values[0], range) else list(values[0])
    elements = elements_of("of choice()", options)
    if not elements:
        raise SearchSpaceError("choice([]) has no values: give at least one")
    return Distribution(ChoiceOf(values=tuple(as_json("of choice()", value) for value in elements)))


# --- values --------------------------------------------------------------------------------------


def _is_collection(value: object) -> bool:
    """Return True for a collection of values; a text, a dict and a scalar array are one value."""
    if is_array(value):
        return getattr(value, "ndim", 0) > 0
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def is_axis(value: object) -> bool:
    """True for a list, range, array or Enum of values; anything else is one value."""
    return isinstance(value, list | tuple | range | EnumType) or (
        is_array(value) and getattr(value, "ndim", 0) > 0
    )


def num_values(value: Any) -> int:
    """Return the number of values of an axis."""
    if isinstance(value, range):  # len() of a long range raises
        return max(0, -((value.start - value.stop) // value.step))
    return len(value)


def elements_of(name: str, values: Any) -> list[Any]:
    """Return the elements of a list or array; `name` is the hyperparameter in error messages."""
    if (count := num_values(values)) > MAX_CONFIGURATIONS:
        raise SearchSpaceError(
            f"hyperparameter {name} has {count:,} values, at most {MAX_CONFIGURATIONS:,}: use randint(), "
            "uniform() or loguniform()"
        )
    if not is_array(values):
        return list(values)
    try:
        return list(listed(values))
    except ValueError as cause:
        raise SearchSpaceError(f"hyperparameter {name} {cause}") from cause


def as_json(name: str, value: Any) -> JsonValue:
    """Return the value as user code receives it; `name` is the hyperparameter in error messages."""
    if _has_distribution(value):
        raise SearchSpaceError(
            f"hyperparameter {name} has a distribution inside its value {value!r}: nested distributions are not "
            "supported. Make each sampled hyperparameter a top-level entry, and let when() make it conditional"
        )
    try:
        return carried(value)
    except ValueError as cause:
        raise SearchSpaceError(
            f"hyperparameter {name} has the value {_shown(value)} ({type(value).__name__}), which cannot be stored "
            f"exactly: it {cause}"
        ) from cause


def _shown(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # Python refuses to print integers of over 4,300 digits
        return "..."
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _has_distribution(value: Any) -> bool:
    pending = [value]
    while pending:  # not recursive: the depth is checked later
        value = pending.pop()
        if isinstance(value, Distribution):
            return True
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
    return False


# --- ends and steps ------------------------------------------------------------------------------


def _ends(name: str, low: object, high: object) -> tuple[float, float]:
    ends = _number(low), _number(high)
    if not all(map(math.isfinite, ends)):
        quoted = "; leave out the quotes" if isinstance(low, str) or isinstance(high, str) else ""
        call = f"{name}({_shown(low)}, {_shown(high)})"
        raise SearchSpaceError(f"{call}: both ends must be finite numbers{quoted}")
    if ends[0] > ends[1]:
        raise SearchSpaceError(f"{name}({low}, {high}): the lower end is above the upper one")
    return ends


def _step(name: str, low: Any, high: Any, step: Any) -> Decimal:
    """Return the step of a range, checked in decimals: 0.1 divides 0.5."""
    call = f"{name}({low}, {high}, step={_shown(step)})"
    distance = _number(step)
    if not (math.isfinite(distance) and distance > 0):
        raise SearchSpaceError(f"{call}: the step must be a finite number above 0")
    first, last, exact = (Decimal(repr(_number(value))) for value in (low, high, step))
    if (last - first) / exact > MAX_INTEGER:
        raise SearchSpaceError(f"{call}: the step is too small for the range; leave it out")
    if rest := (last - first) % exact:
        raise SearchSpaceError(
            f"{call}: the step does not divide the range; set the upper end to {_plain(last - rest)} or "
            f"{_plain(last - rest + exact)}, or change the step"
        )
    return exact


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


def _number(value: object) -> float:
    """Convert to float; NaN for texts and for integers that no float can hold."""
    plain = listed(value) if is_array(value) and not has_masked(value) else value
    try:
        return float(plain) if isinstance(plain, Real) else math.nan
    except OverflowError:
        return math.nan
