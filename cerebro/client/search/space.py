"""Search spaces: from what a user writes to a list of training configurations. Pure.

Three forms:

- a dict of lists or arrays: their grid, ``{"lr": [0.1, 0.01], "batch_size": [32]}``; any other value is fixed;
- a dict with distributions (`uniform`, `loguniform`, `randint`, `choice`) and a number of `samples`: random search;
- a list of dicts: these configurations.
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
from cerebro.search.drawing import drawn_from

SearchSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_LONGEST = 200


@dataclass(frozen=True)
class Distribution:
    """A hyper-parameter to draw; made by the functions below."""

    data: data.Distribution


def uniform(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """A number between `low` and `high`."""
    ends = _ends("uniform", low, high)
    return Distribution(Uniform(low=ends[0], high=ends[1]))


def loguniform(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """A positive number whose logarithm is uniform."""
    ends = _ends("loguniform", low, high)
    if ends[0] <= 0:
        raise SearchSpaceError(f"loguniform({low}, {high}): the lower end must be positive")
    return Distribution(LogUniform(low=ends[0], high=ends[1]))


def randint(low: SupportsFloat, high: SupportsFloat) -> Distribution:
    """An integer from `low` to `high`, both included."""
    ends = _ends("randint", low, high)
    if any(end % 1 for end in ends):
        raise SearchSpaceError(f"randint({low}, {high}): both ends must be whole numbers")
    if max(map(abs, ends)) > MAX_INTEGER:
        raise SearchSpaceError(f"randint({low}, {high}): numbers beyond 2**53 cannot be carried exactly")
    return Distribution(RandInt(low=int(ends[0]), high=int(ends[1])))


def choice(values: Iterable[Any]) -> Distribution:
    """One of `values`."""
    given = _elements(
        "of choice()", values if is_array(values) or isinstance(values, range) else list(values)
    )
    if not given:
        raise SearchSpaceError("choice([]) has no values: give at least one")
    return Distribution(ChoiceOf(values=tuple(_as_json("of choice()", value) for value in given)))


def configurations(space: SearchSpace, *, samples: int | None = None, seed: int = 0) -> list[Hyperparameters]:
    """The training configurations of a search space, in a fixed order.

    Args:
        samples: how many to draw where the space has distributions.
        seed: of the draws; each hyper-parameter has its own generator, so that no two are correlated.

    Raises:
        SearchSpaceError: names what is empty, of a wrong type, or missing.
    """
    return list(_configurations(space, samples, seed))


def first_configuration(space: SearchSpace) -> Hyperparameters:
    """Return the first of `configurations`."""
    return next(iter(_configurations(space, 1 if is_drawn(space) else None, 0)))


def _configurations(space: SearchSpace, samples: int | None, seed: int) -> Iterable[Hyperparameters]:
    """Check the space and its size, and return a lazy list of configurations."""
    if isinstance(space, Mapping):
        _check_names(space)
        if is_drawn(space):
            _require_few(samples or 0, f"samples={samples}")
            return map(_checked, _sampled(space, samples, seed))
        if samples is not None:
            raise SearchSpaceError(
                f"samples={samples}, but no hyper-parameter of the search space is drawn at random: use uniform(), "
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


def is_drawn(space: SearchSpace) -> bool:
    """Whether a hyper-parameter is drawn at random."""
    return isinstance(space, Mapping) and any(isinstance(value, Distribution) for value in space.values())


def space_data(space: Mapping[str, Any]) -> Space:
    """A search space with distributions, as a request has it: a list is a choice, a fixed value a choice of one.

    Raises:
        SearchSpaceError: as `configurations` does, and for a distribution inside a value.
    """
    _check_names(space)
    found = {name: _distribution(name, value) for name, value in space.items()}
    _check_batch_size(found.get("batch_size"))
    return found


def _distribution(name: str, value: Any) -> data.Distribution:
    if isinstance(value, Distribution):
        return value.data
    return ChoiceOf(values=tuple(_axis(name, value)))


def _check_batch_size(among: data.Distribution | None) -> None:
    match among:
        case None:
            sizes: tuple[JsonValue, ...] = (None,)
        case ChoiceOf():
            sizes = among.values
        case RandInt():
            sizes = (among.low,)
        case _:
            raise SearchSpaceError(
                f"batch_size is drawn by {among.kind}(), expected a positive integer: use randint() or choice()"
            )
    for size in sizes:
        _checked({"batch_size": size} if among else {})


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
    has_parts = any(isinstance(value, list | dict) for values in axes.values() for value in values)
    found: Iterable[Hyperparameters] = (
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    )
    return map(copy.deepcopy, found) if has_parts else found


def _require_few(count: int, what: str) -> None:
    if count > MAX_CONFIGURATIONS:
        raise SearchSpaceError(
            f"{what} has {count:,} configurations, at most {MAX_CONFIGURATIONS:,}: draw some at random, as in "
            "run_fit(..., {'lr': choice([...])}, samples=100), or use a search such as search=ASHA()"
        )


def _is_axis(value: object) -> bool:
    return isinstance(value, list | tuple | range) or (is_array(value) and getattr(value, "ndim", 0) > 0)


def _length(value: Any) -> int:
    if isinstance(value, range):  # len() of a long range raises
        return max(0, -((value.start - value.stop) // value.step))
    return len(value)


def _axis(name: str, value: Any) -> list[JsonValue]:
    """The values of a hyper-parameter; a value that is no axis is its only one."""
    values = _elements(repr(name), value) if _is_axis(value) else [value]
    if not values:
        raise SearchSpaceError(f"hyper-parameter {name!r} has no values: give at least one")
    return [_as_json(repr(name), each) for each in values]


def _elements(name: str, values: Any) -> list[Any]:
    """The elements of a list or array of a hyper-parameter, which errors call `name`."""
    if (count := _length(values)) > MAX_CONFIGURATIONS:
        raise SearchSpaceError(
            f"hyper-parameter {name} has {count:,} values, at most {MAX_CONFIGURATIONS:,}: draw it by randint(), "
            "uniform() or loguniform()"
        )
    if not is_array(values):
        return list(values)
    try:
        return list(listed(values))
    except ValueError as cause:
        raise SearchSpaceError(f"hyper-parameter {name} {cause}") from cause


def _sampled(space: Mapping[str, Any], samples: int | None, seed: int) -> list[Hyperparameters]:
    if samples is None or samples < 1:
        raise SearchSpaceError(
            f"samples={samples}: a search space with distributions needs samples=N, at least 1"
        )
    generators = {name: random.Random(f"{seed}/{name}") for name in space}
    axes = {name: _axis(name, value) for name, value in space.items() if not isinstance(value, Distribution)}

    def draw(name: str) -> Any:
        value = space[name]
        if isinstance(value, Distribution):
            return drawn_from(value.data, generators[name])
        return generators[name].choice(axes[name]) if _is_axis(value) else axes[name][0]

    return [{name: draw(name) for name in space} for _ in range(samples)]


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
            raise SearchSpaceError(f"hyper-parameter names must be text, not {name!r}")
        _as_json("names", name)


def _checked(configuration: Mapping[str, Any]) -> Hyperparameters:
    """The configuration that user code gets: tuples have become lists."""
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
    """A value as it will reach user code; `name` is how an error names the hyper-parameter."""
    if _has_distribution(value):
        raise SearchSpaceError(
            f"hyper-parameter {name} has a distribution inside its value {value!r}: spaces with conditions are not "
            "supported; give each hyper-parameter that is drawn a name of its own at the top"
        )
    try:
        return carried(value)
    except ValueError as cause:
        raise SearchSpaceError(
            f"hyper-parameter {name} has the value {_shown(value)} ({type(value).__name__}), which cannot be carried "
            f"exactly: it {cause}"
        ) from cause


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _has_distribution(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_distribution, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_distribution, value))
    return isinstance(value, Distribution)


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
    """As a float; not a number, if it is none: a text that reads like one would be compared as text."""
    plain = listed(value) if is_array(value) and not has_masked(value) else value
    return float(plain) if isinstance(plain, Real) else math.nan
