"""Search spaces: from what a user writes to a list of training configurations. Pure.

Three forms:

- a dict of lists: their grid, ``{"lr": [0.1, 0.01], "batch_size": [32]}``; a value that is no list is fixed;
- a dict with distributions (`uniform`, `loguniform`, `randint`, `choice`) and a number of `samples`: random search;
- a list of dicts: these configurations.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from pydantic import JsonValue

from cerebro.contract import search as data
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, LogUniform, RandInt, Space, Uniform
from cerebro.errors import SearchSpaceError
from cerebro.search.drawing import drawn_from

SearchSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Distribution:
    """A hyper-parameter that is drawn; made by the functions below.

    User code that the version 0.1.0 stored has objects of this class without `data`: they can be read, not drawn from.
    """

    data: data.Distribution


def uniform(low: float, high: float) -> Distribution:
    """A number between `low` and `high`."""
    low, high = _ends("uniform", low, high)
    return Distribution(Uniform(low=low, high=high))


def loguniform(low: float, high: float) -> Distribution:
    """A positive number whose logarithm is uniform."""
    ends = _ends("loguniform", low, high)
    if ends[0] <= 0:
        raise SearchSpaceError(f"loguniform({low}, {high}): the lower end must be positive")
    return Distribution(LogUniform(low=ends[0], high=ends[1]))


def randint(low: int, high: int) -> Distribution:
    """An integer from `low` to `high`, both included."""
    _ends("randint", low, high)
    if low % 1 or high % 1:
        raise SearchSpaceError(f"randint({low}, {high}): both ends must be whole numbers")
    return Distribution(RandInt(low=int(low), high=int(high)))


def choice(values: Sequence[Any]) -> Distribution:
    """One of `values`."""
    if not values:
        raise SearchSpaceError("choice([]) has no values: give at least one")
    return Distribution(ChoiceOf(values=tuple(_as_json("of choice()", value) for value in values)))


def configurations(space: SearchSpace, *, samples: int | None = None, seed: int = 0) -> list[Hyperparameters]:
    """The training configurations of a search space, in a fixed order.

    Args:
        samples: how many to draw where the space has distributions.
        seed: of the draws; each hyper-parameter has its own generator, so that no two are correlated.

    Raises:
        SearchSpaceError: names what is empty, of a wrong type, or missing.
    """
    if isinstance(space, Mapping):
        if is_drawn(space):
            found = _sampled(space, samples, seed)
        elif samples is not None:
            raise SearchSpaceError(
                f"samples={samples}, but no hyper-parameter of the search space is drawn at random: use uniform(), "
                "loguniform(), randint() or choice(), or leave `samples` out for the grid"
            )
        else:
            found = _grid(space)
    elif isinstance(space, list | tuple):
        found = [_configuration(position, item) for position, item in enumerate(space)]
    else:
        raise SearchSpaceError(
            f"the search space is a {type(space).__name__}, expected a dict of lists (a grid) or a list of dicts"
        )
    if not found:
        raise SearchSpaceError("the search space is empty, expected at least one training configuration")
    return [_checked(configuration) for configuration in found]


def first_configuration(space: SearchSpace) -> Hyperparameters:
    """The first of `configurations`, whatever form the search space has."""
    return configurations(space, samples=1 if is_drawn(space) else None)[0]


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
    values = _listed(name, value) if isinstance(value, list | tuple | range) else [value]
    return ChoiceOf(values=tuple(_as_json(repr(name), each) for each in values))


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


def _grid(space: Mapping[str, Any]) -> list[Hyperparameters]:
    _check_names(space)
    axes = {}
    for name, value in space.items():
        axes[name] = _listed(name, value) if isinstance(value, list | tuple | range) else [value]
    return (
        [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())] if axes else []
    )


def _sampled(space: Mapping[str, Any], samples: int | None, seed: int) -> list[Hyperparameters]:
    _check_names(space)
    if samples is None or samples < 1:
        raise SearchSpaceError(
            f"samples={samples}: a search space with distributions needs samples=N, at least 1"
        )
    generators = {name: random.Random(f"{seed}/{name}") for name in space}

    def draw(name: str) -> Any:
        value = space[name]
        if isinstance(value, list | tuple | range):
            return generators[name].choice(_listed(name, value))
        return drawn_from(value.data, generators[name]) if isinstance(value, Distribution) else value

    return [{name: draw(name) for name in space} for _ in range(samples)]


def _listed(name: str, value: Sequence[Any]) -> list[Any]:
    if not value:
        raise SearchSpaceError(f"hyper-parameter {name!r} has no values: give at least one")
    return list(value)


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


def _checked(configuration: Mapping[str, Any]) -> Hyperparameters:
    """The configuration as it will reach user code: tuples have become lists, as JSON has it."""
    checked: Hyperparameters = {name: _as_json(repr(name), value) for name, value in configuration.items()}
    size = configuration.get("batch_size")
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
        text = json.dumps({name: value}, allow_nan=False, ensure_ascii=False)
        found: JsonValue = json.loads(text.encode())[name]
    except UnicodeEncodeError as cause:
        raise SearchSpaceError(
            f"hyper-parameter {name} has the value {value!r}: one of its texts has half a character (a lone "
            "surrogate) and cannot be stored; remove it, for example by text.encode('utf-8', 'replace').decode()"
        ) from cause
    except (TypeError, ValueError) as cause:
        raise SearchSpaceError(
            f"hyper-parameter {name} has the value {value!r} ({type(value).__name__}): use numbers, text, booleans, or "
            "lists and dicts of them"
        ) from cause
    return found


def _has_distribution(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_distribution, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_distribution, value))
    return isinstance(value, Distribution)


def _ends(name: str, low: float, high: float) -> tuple[float, float]:
    given: tuple[object, object] = low, high
    try:
        ends = _number(low), _number(high)
    except OverflowError:
        ends = math.nan, math.nan
    if not all(map(math.isfinite, ends)):
        quoted = "; leave out the quotes" if any(isinstance(end, str) for end in given) else ""
        raise SearchSpaceError(f"{name}({low!r}, {high!r}): both ends must be finite numbers{quoted}")
    if low > high:
        raise SearchSpaceError(f"{name}({low}, {high}): the lower end is above the upper one")
    return ends


def _number(value: object) -> float:
    """As a float; not a number, if it is none: a text that reads like one would be compared as text."""
    return float(value) if isinstance(value, Real) else math.nan
