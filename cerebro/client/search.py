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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.records import Hyperparameters
from cerebro.errors import SearchSpaceError

SearchSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A hyper-parameter that is drawn at random; made by the functions below."""

    name: str
    draw: Callable[[random.Random], Any]


def uniform(low: float, high: float) -> Distribution:
    """A number between `low` and `high`."""
    _ordered("uniform", low, high)
    return Distribution(name="uniform", draw=lambda rng: rng.uniform(low, high))


def loguniform(low: float, high: float) -> Distribution:
    """A positive number whose logarithm is uniform."""
    _ordered("loguniform", low, high)
    if low <= 0:
        raise SearchSpaceError(f"loguniform({low}, {high}): the lower end must be positive")
    return Distribution(
        name="loguniform", draw=lambda rng: math.exp(rng.uniform(math.log(low), math.log(high)))
    )


def randint(low: int, high: int) -> Distribution:
    """An integer from `low` to `high`, both included."""
    _ordered("randint", low, high)
    return Distribution(name="randint", draw=lambda rng: rng.randint(low, high))


def choice(values: Sequence[Any]) -> Distribution:
    """One of `values`."""
    if not values:
        raise SearchSpaceError("choice([]) has no values: give at least one")
    return Distribution(name="choice", draw=lambda rng: rng.choice(list(values)))


def configurations(space: SearchSpace, *, samples: int | None = None, seed: int = 0) -> list[Hyperparameters]:
    """The training configurations of a search space, in a fixed order.

    Args:
        samples: how many to draw where the space has distributions.
        seed: of the draws; each hyper-parameter has its own generator, so that no two are correlated.

    Raises:
        SearchSpaceError: names what is empty, of a wrong type, or missing.
    """
    if isinstance(space, Mapping):
        drawn = {name for name, value in space.items() if isinstance(value, Distribution)}
        if drawn:
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
    values = space.values() if isinstance(space, Mapping) else ()
    is_drawn = any(isinstance(value, Distribution) for value in values)
    return configurations(space, samples=1 if is_drawn else None)[0]


def _grid(space: Mapping[str, Any]) -> list[Hyperparameters]:
    _check_names(space)
    axes = {}
    for name, value in space.items():
        values = list(value) if isinstance(value, list | tuple | range) else [value]
        if not values:
            raise SearchSpaceError(f"hyper-parameter {name!r} has no values: give at least one")
        axes[name] = values
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
            value = choice(list(value))
        return value.draw(generators[name]) if isinstance(value, Distribution) else value

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


def _checked(configuration: Mapping[str, Any]) -> Hyperparameters:
    """The configuration as it will reach user code: tuples have become lists, as JSON has it."""
    checked: Hyperparameters = {}
    for name, value in configuration.items():
        try:
            text = json.dumps({name: value}, allow_nan=False, ensure_ascii=False)
            checked |= json.loads(text.encode())
        except UnicodeEncodeError as cause:
            raise SearchSpaceError(
                f"hyper-parameter {name!r} has the value {value!r}: one of its texts has half a character (a lone "
                "surrogate) and cannot be stored; remove it, for example by text.encode('utf-8', 'replace').decode()"
            ) from cause
        except (TypeError, ValueError) as cause:
            raise SearchSpaceError(
                f"hyper-parameter {name!r} has the value {value!r} ({type(value).__name__}): use "
                "numbers, text, booleans, or "
                "lists and dicts of them"
            ) from cause
    size = configuration.get("batch_size")
    if size is None:
        raise SearchSpaceError(
            "the search space lacks 'batch_size': the data loader needs it; add 'batch_size': [32]"
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SearchSpaceError(f"batch_size is {size!r}, expected a positive integer")
    return checked


def _ordered(name: str, low: float, high: float) -> None:
    if not low <= high:
        raise SearchSpaceError(f"{name}({low}, {high}): the lower end is above the upper one")
