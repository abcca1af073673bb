"""Search spaces, and the configurations they describe. Pure functions.

`run_requests` and `requests` call it; users call the distributions. At most 100,000 configurations are listed.

A search space has one of three forms:

- a dict of lists or arrays, a grid: ``{"lr": [0.1, 0.01], "batch_size": [32]}``; any other value is fixed;
- a dict with distributions (`uniform`, `loguniform`, `randint`, `choice`) and a number of `samples`;
- a list of dicts, one per configuration.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, SupportsFloat

from pydantic import JsonValue

from cerebro.contract import search as data
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import MAX_CONFIGURATIONS, ChoiceOf, LogUniform, RandInt, Space, Uniform
from cerebro.contract.values import MAX_INTEGER, carried, has_masked, is_array, listed
from cerebro.errors import SearchSpaceError
from cerebro.search.sampling import sample_from

SearchSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_MAX_SHOWN = 200


@dataclass(frozen=True)
class Distribution:
    """Distribution of a hyperparameter; created by `uniform`, `loguniform`, `randint` and `choice`."""

    data: data.Distribution


def uniform(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """Sample a float uniformly between `low` and `high`.

    Args:
        low: smallest value.
        high: largest value, not below `low`.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: a bound is not finite, or `low` exceeds `high`.

    Example:
        >>> space = {"dropout": uniform(0.0, 0.5), "batch_size": 32}
    """
    ends = _ends("uniform", low, high)
    return Distribution(Uniform(low=ends[0], high=ends[1]))


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


def randint(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """Sample an integer from `low` to `high`, both included.

    Args:
        low: smallest value.
        high: largest value, not below `low`.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: a bound is not an integer within 2**53, or `low` exceeds `high`.

    Example:
        >>> space = {"layers": randint(2, 6), "batch_size": 32}
    """
    ends = _ends("randint", low, high)
    if any(end % 1 for end in ends):
        raise SearchSpaceError(f"randint({low}, {high}): both ends must be whole numbers")
    if max(map(abs, ends)) > MAX_INTEGER:
        raise SearchSpaceError(f"randint({low}, {high}): numbers beyond 2**53 cannot be stored exactly")
    return Distribution(RandInt(low=int(ends[0]), high=int(ends[1])))


def choice(values: Iterable[Any]) -> Distribution:
    """Sample one of `values`, each with equal probability.

    Args:
        values: iterable or array of JSON values: numbers, texts, booleans, `None`, lists and dicts.

    Returns:
        A distribution for a search space.

    Raises:
        SearchSpaceError: `values` is empty, or a value is not a JSON value.

    Example:
        >>> space = {"activation": choice(["relu", "gelu"]), "batch_size": 32}
    """
    elements = _elements(
        "of choice()", values if is_array(values) or isinstance(values, range) else list(values)
    )
    if not elements:
        raise SearchSpaceError("choice([]) has no values: give at least one")
    return Distribution(ChoiceOf(values=tuple(_as_json("of choice()", value) for value in elements)))


def configurations(space: SearchSpace, *, samples: int | None = None, seed: int = 0) -> list[Hyperparameters]:
    """List the configurations of a search space, in a fixed order.

    Args:
        space: search space in one of the three forms of this module.
        samples: number of configurations to sample; required if the space has distributions.
        seed: seed of the samples. Each hyperparameter has its own generator, so their values are independent.

    Returns:
        One dict of hyperparameters per configuration.

    Raises:
        SearchSpaceError: the space is empty, has an invalid value, or lacks ``batch_size``.

    Example:
        >>> configurations({"lr": [0.1, 0.01], "batch_size": 32})
        [{'lr': 0.1, 'batch_size': 32}, {'lr': 0.01, 'batch_size': 32}]
    """
    return list(_configurations(space, samples, seed))


def first_configuration(space: SearchSpace) -> Hyperparameters:
    """Return the first configuration of a search space."""
    return next(iter(_configurations(space, 1 if has_distributions(space) else None, 0)))


def _configurations(space: SearchSpace, samples: int | None, seed: int) -> Iterable[Hyperparameters]:
    if isinstance(space, Mapping):
        _check_names(space)
        if has_distributions(space):
            _require_few(samples or 0, f"samples={samples}")
            return map(_checked, _sampled(space, samples, seed))
        if samples is not None:
            raise SearchSpaceError(
                f"samples={samples}, but the search space has no distribution: use uniform(), "
                "loguniform(), randint() or choice(), or leave `samples` out for the grid"
            )
        return _grid(space)
    if not isinstance(space, list | tuple):
        raise SearchSpaceError(
            f"the search space is a {type(space).__name__}, expected a dict of lists (a grid) or a list of dicts"
        )
    if not space:
        raise SearchSpaceError("the search space is empty, expected at least one training configuration")
    _require_few(len(space), "the list")
    return [_checked(_configuration(position, item)) for position, item in enumerate(space)]


def has_distributions(space: SearchSpace) -> bool:
    """True if a hyperparameter has a distribution."""
    return isinstance(space, Mapping) and any(isinstance(value, Distribution) for value in space.values())


def space_data(space: Mapping[str, Any]) -> Space:
    """Convert a search space into distributions; lists and values become choices.

    Raises:
        SearchSpaceError: as `configurations`, or a value contains a distribution.
    """
    _check_names(space)
    distributions = {name: _distribution(name, value) for name, value in space.items()}
    _check_batch_size(distributions.get("batch_size"))
    return distributions


def _distribution(name: str, value: Any) -> data.Distribution:
    if isinstance(value, Distribution):
        return value.data
    return ChoiceOf(values=tuple(_axis(name, value)))


def _check_batch_size(distribution: data.Distribution | None) -> None:
    match distribution:
        case None:
            sizes: tuple[JsonValue, ...] = (None,)
        case ChoiceOf():
            sizes = distribution.values
        case RandInt():
            sizes = (distribution.low,)
        case _:
            raise SearchSpaceError(
                f"batch_size uses {distribution.kind}(), expected positive integers: use randint() or choice()"
            )
    for size in sizes:
        _checked({"batch_size": size} if distribution else {})


def _grid(space: Mapping[str, Any]) -> Iterable[Hyperparameters]:
    lengths = {name: _length(value) for name, value in space.items() if _is_axis(value)}
    count = math.prod(lengths.values())
    if count > MAX_CONFIGURATIONS:
        product = " x ".join(f"{name} {length:,}" for name, length in lengths.items() if length > 1)
        _require_few(count, f"the grid ({product})")
    axes = {name: _axis(name, value) for name, value in space.items()}
    if not axes:
        raise SearchSpaceError("the search space is empty, expected at least one training configuration")
    _check_batch_size(ChoiceOf(values=tuple(axes["batch_size"])) if "batch_size" in axes else None)
    has_containers = any(isinstance(value, list | dict) for values in axes.values() for value in values)
    grid: Iterable[Hyperparameters] = (
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    )
    return map(copy.deepcopy, grid) if has_containers else grid


def _require_few(count: int, subject: str) -> None:
    if count > MAX_CONFIGURATIONS:
        raise SearchSpaceError(
            f"{subject} has {count:,} configurations, at most {MAX_CONFIGURATIONS:,}: sample some, as in "
            "run_fit(..., {'lr': choice([...])}, samples=100), or use a search such as search=ASHA()"
        )


def _is_axis(value: object) -> bool:
    return isinstance(value, list | tuple | range) or (is_array(value) and getattr(value, "ndim", 0) > 0)


def _length(value: Any) -> int:
    if isinstance(value, range):  # len() of a long range raises
        return max(0, -((value.start - value.stop) // value.step))
    return len(value)


def _axis(name: str, value: Any) -> list[JsonValue]:
    """Return the values of a hyperparameter; a scalar is its only value."""
    values = _elements(repr(name), value) if _is_axis(value) else [value]
    if not values:
        raise SearchSpaceError(f"hyperparameter {name!r} has no values: give at least one")
    return [_as_json(repr(name), each) for each in values]


def _elements(name: str, values: Any) -> list[Any]:
    """Return the elements of a list or array; `name` is the hyperparameter in error messages."""
    if (count := _length(values)) > MAX_CONFIGURATIONS:
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


def _sampled(space: Mapping[str, Any], samples: int | None, seed: int) -> list[Hyperparameters]:
    if samples is None or samples < 1:
        raise SearchSpaceError(
            f"samples={samples}: a search space with distributions needs samples=N, at least 1"
        )
    generators = {name: random.Random(f"{seed}/{name}") for name in space}
    axes = {name: _axis(name, value) for name, value in space.items() if not isinstance(value, Distribution)}

    def sample(name: str) -> Any:
        value = space[name]
        if isinstance(value, Distribution):
            return sample_from(value.data, generators[name])
        return generators[name].choice(axes[name]) if _is_axis(value) else axes[name][0]

    return [{name: sample(name) for name in space} for _ in range(samples)]


def _configuration(position: int, item: object) -> Hyperparameters:
    if not isinstance(item, Mapping):
        raise SearchSpaceError(
            f"configuration {position} of the search space is a {type(item).__name__}, expected a dict"
        )
    _check_names(item)
    return dict(item)


def _check_names(space: Mapping[Any, Any]) -> None:
    for name in space:
        if not isinstance(name, str) or not name:
            raise SearchSpaceError(f"hyperparameter names must be text, not {name!r}")
        _as_json("names", name)


def _checked(configuration: Mapping[str, Any]) -> Hyperparameters:
    """Return the configuration as user code receives it, with lists instead of tuples."""
    checked: Hyperparameters = {name: _as_json(repr(name), value) for name, value in configuration.items()}
    size = checked.get("batch_size")
    if size is None:
        raise SearchSpaceError(
            "the search space lacks 'batch_size': the data loader needs it; add 'batch_size': [32]"
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SearchSpaceError(f"batch_size is {size!r}, expected a positive integer")
    return checked


def _as_json(name: str, value: Any) -> JsonValue:
    """Return the value as user code receives it; `name` is the hyperparameter in error messages."""
    if _has_distribution(value):
        raise SearchSpaceError(
            f"hyperparameter {name} has a distribution inside its value {value!r}: nested distributions are not "
            "supported. Make each sampled hyperparameter a top-level entry"
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
    except RecursionError:
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


def _ends(name: str, low: object, high: object) -> tuple[float, float]:
    try:
        ends = _number(low), _number(high)
    except OverflowError:
        ends = math.nan, math.nan
    if not all(map(math.isfinite, ends)):
        quoted = "; leave out the quotes" if isinstance(low, str) or isinstance(high, str) else ""
        raise SearchSpaceError(f"{name}({low!r}, {high!r}): both ends must be finite numbers{quoted}")
    if ends[0] > ends[1]:
        raise SearchSpaceError(f"{name}({low}, {high}): the lower end is above the upper one")
    return ends


def _number(value: object) -> float:
    """Convert to float; NaN for texts, because a text would be compared as a text."""
    plain = listed(value) if is_array(value) and not has_masked(value) else value
    return float(plain) if isinstance(plain, Real) else math.nan
