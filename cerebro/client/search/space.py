"""Search spaces, and the configurations they describe. Pure functions.

`run_requests` and `requests` call it; users call the distributions. At most 100,000 configurations are listed.

A search space has one of three forms:

- a dict of lists or arrays, a grid: ``{"lr": [0.1, 0.01], "batch_size": [32]}``; any other value is fixed;
- a dict with distributions (`uniform`, `loguniform`, `randint`, `choice`) and a number of `samples`. Without `samples`
  it is a grid too, of choices, integers and floats with a step;
- a list of dicts, one per configuration.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from cerebro.client.search.distributions import Distribution, as_json, elements_of, is_axis, num_values
from cerebro.client.search.grid import check_conditions, grid, grid_size, ranges_of_floats
from cerebro.contract import search as data
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import MAX_CONFIGURATIONS, ChoiceOf, RandInt, Space
from cerebro.errors import SearchSpaceError
from cerebro.search import grids
from cerebro.search.sampling import applicable, sample_from

SearchSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_MAX_FACTORS = 12
"""Hyperparameters that the message on a large grid lists."""


def configurations(space: SearchSpace, *, samples: int | None = None, seed: int = 0) -> list[Hyperparameters]:
    """List the configurations of a search space, in a fixed order.

    Args:
        space: search space in one of the three forms of this module.
        samples: number of configurations to sample; required if the space has a range of floats without a step.
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
    """Return the first configuration of a search space; a random one if the space has distributions."""
    return next(iter(_configurations(space, 1 if has_distributions(space) else None, 0)))


def _configurations(space: SearchSpace, samples: int | None, seed: int) -> Iterable[Hyperparameters]:
    if isinstance(space, Mapping):
        _check_names(space)
        if has_distributions(space):
            if samples is None:
                return _grid_of_distributions(space)
            _require_few(samples, f"samples={samples}")
            return _sampled(space, samples, seed)
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
    check_conditions(distributions)
    _check_batch_size(distributions.get("batch_size"))
    return distributions


def conditional_space(space: SearchSpace) -> Space:
    """Return the distributions of a search space with conditions; without conditions an empty space."""
    has_conditions = isinstance(space, Mapping) and any(
        isinstance(value, Distribution) and value.data.when for value in space.values()
    )
    return space_data(space) if isinstance(space, Mapping) and has_conditions else {}


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
    lengths = {name: num_values(value) for name, value in space.items() if is_axis(value)}
    count = math.prod(lengths.values())
    if count > MAX_CONFIGURATIONS:
        _require_few(count, f"the grid ({_product(lengths)})")
    axes = {name: _axis(name, value) for name, value in space.items()}
    if not axes:
        raise SearchSpaceError("the search space is empty, expected at least one training configuration")
    _check_batch_size(ChoiceOf(values=tuple(axes["batch_size"])) if "batch_size" in axes else None)
    has_containers = any(isinstance(value, list | dict) for values in axes.values() for value in values)
    configs: Iterable[Hyperparameters] = (
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    )
    return map(copy.deepcopy, configs) if has_containers else configs


def _grid_of_distributions(space: Mapping[str, Any]) -> list[Hyperparameters]:
    distributions = space_data(space)
    if endless := list(ranges_of_floats(distributions)):
        raise SearchSpaceError(
            f"samples=None: a search space with distributions needs samples=N, at least 1; it is a grid only without "
            f"ranges of floats, and {endless[0]!r} is one"
        )
    size = grid_size(distributions)
    if size is None or size > MAX_CONFIGURATIONS:
        lengths = {name: grids.num_values(each) or 1 for name, each in distributions.items()}
        count = math.prod(lengths.values()) if size is None else size
        _require_few(count, f"the grid ({_product(lengths)})", is_most=size is None)
    return copy.deepcopy(grid(distributions))


def _product(lengths: Mapping[str, int]) -> str:
    factors = [f"{name} {length:,}" for name, length in lengths.items() if length > 1]
    return " x ".join([*factors[:_MAX_FACTORS], *(["..."] if len(factors) > _MAX_FACTORS else [])])


def _require_few(count: int, subject: str, *, is_most: bool = False) -> None:
    if count > MAX_CONFIGURATIONS:
        number = f"up to {count:,}" if is_most else f"{count:,}"
        raise SearchSpaceError(
            f"{subject} has {number} configurations, at most {MAX_CONFIGURATIONS:,}: sample some, as in "
            "run_fit(..., {'lr': choice([...])}, samples=100), or use a search such as search=ASHA()"
        )


def _axis(name: str, value: Any) -> list[JsonValue]:
    """Return the values of a hyperparameter; a scalar is its only value."""
    values = elements_of(repr(name), value) if is_axis(value) else [value]
    if not values:
        raise SearchSpaceError(f"hyperparameter {name!r} has no values: give at least one")
    return [as_json(repr(name), each) for each in values]


def _sampled(space: Mapping[str, Any], samples: int, seed: int) -> list[Hyperparameters]:
    if samples < 1:
        raise SearchSpaceError(
            f"samples={samples}: a search space with distributions needs samples=N, at least 1"
        )
    distributions = space_data(space)
    generators = {name: random.Random(f"{seed}/{name}") for name in space}
    drawn = (
        {name: sample_from(each, generators[name]) for name, each in distributions.items()}
        for _ in range(samples)
    )
    return [copy.deepcopy(applicable(distributions, each)) for each in drawn]


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
        as_json("names", name)


def _checked(configuration: Mapping[str, Any]) -> Hyperparameters:
    """Return the configuration as user code receives it, with lists instead of tuples."""
    checked: Hyperparameters = {name: as_json(repr(name), value) for name, value in configuration.items()}
    size = checked.get("batch_size")
    if size is None:
        raise SearchSpaceError(
            "the search space lacks 'batch_size': the data loader needs it; add 'batch_size': [32]"
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SearchSpaceError(f"batch_size is {size!r}, expected a positive integer")
    return checked
