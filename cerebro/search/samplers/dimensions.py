"""The dimensions of a search space, for all samplers: hyperparameters with more than one value. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Distribution, RandInt, Space, Uniform, is_among
from cerebro.search.grids import nearest
from cerebro.search.history import Past
from cerebro.search.sampling import applicable


def varying(space: Space) -> dict[str, Distribution]:
    """Return the space without fixed hyperparameters.

    A condition on a fixed hyperparameter becomes the conditions of that hyperparameter, or none.
    """
    found: dict[str, Distribution] = {}
    fixed: dict[str, Mapping[str, tuple[JsonValue, ...]]] = {}
    for name, distribution in space.items():
        when: dict[str, tuple[JsonValue, ...]] = {}
        for parent, values in distribution.when.items():
            for each, allowed in fixed.get(parent, {parent: values}).items():
                both = when.get(each, allowed)
                when[each] = tuple(value for value in both if is_among(value, allowed))
        if _is_fixed(distribution):
            fixed[name] = when
        else:
            found[name] = (
                distribution if when == distribution.when else distribution.model_copy(update={"when": when})
            )
    return found


def _is_fixed(distribution: Distribution) -> bool:
    return (
        len(distribution.values) == 1
        if isinstance(distribution, ChoiceOf)
        else distribution.low == distribution.high
    )


def within(history: Sequence[Past], dimensions: Mapping[str, Distribution]) -> list[Past]:
    """Return the models with values inside the space. Users may add models with any values.

    Hyperparameters whose conditions a model doesn't meet are left out. Values are `exact`.
    """
    if any(_has_steps(each) for each in dimensions.values()):
        history = [replace(past, hyperparams=exact(past.hyperparams, dimensions)) for past in history]
    if any(each.when for each in dimensions.values()):
        applied = (replace(past, hyperparams=applicable(dimensions, past.hyperparams)) for past in history)
        return [past for past in applied if outside(past.hyperparams, dimensions) is None]
    axes = [(name, _is_value_of(distribution)) for name, distribution in dimensions.items()]
    return [past for past in history if _fits(past.hyperparams, axes)]


def outside(values: Hyperparameters, dimensions: Mapping[str, Distribution]) -> str | None:
    """Return the first dimension that lacks a value of the space, although its conditions are met."""
    for name, each in dimensions.items():
        if (not each.when or each.applies(values)) and not (
            name in values and _is_value_of(each)(values[name])
        ):
            return name
    return None


def exact(values: Hyperparameters, dimensions: Mapping[str, Distribution]) -> Hyperparameters:
    """Return the values without rounding errors in ranges of floats with a step: 0.1 * 3 becomes 0.3.

    Conditions and choices compare exactly.
    """
    found = dict(values)
    for name, each in dimensions.items():
        if _has_steps(each) and name in found:
            value = found[name]
            if _is_value_of(each)(value):
                found[name] = nearest(each, value)  # type: ignore[arg-type]
    return found


def _has_steps(distribution: Distribution) -> TypeGuard[Uniform]:
    return isinstance(distribution, Uniform) and distribution.step is not None


_Test = Callable[[JsonValue], bool]


def _fits(hyperparams: Hyperparameters, axes: list[tuple[str, _Test]]) -> bool:
    for name, is_value in axes:  # noqa: SIM110 - runs over 1,000 models per suggestion; `all` takes twice as long
        if name not in hyperparams or not is_value(hyperparams[name]):
            return False
    return True


def _is_value_of(distribution: Distribution) -> _Test:
    if isinstance(distribution, ChoiceOf):
        return distribution.values.__contains__
    low, high = distribution.low, distribution.high
    if isinstance(distribution, RandInt):
        step = distribution.step
        return lambda value: type(value) is int and low <= value <= high and (value - low) % step == 0
    # exp(log(high)) may exceed `high` by a rounding error.
    least, most = low - abs(low) * 1e-12, high + abs(high) * 1e-12
    if _has_steps(distribution):
        return lambda value: (
            type(value) in (float, int)
            and least <= value <= most  # type: ignore[operator]
            and math.isclose(value, nearest(distribution, value), abs_tol=1e-12)  # type: ignore[arg-type]
        )
    return lambda value: type(value) in (float, int) and least <= value <= most  # type: ignore[operator]


def generator_seed(seed: int, number: int) -> int:
    """Return the generator seed of a suggestion, below 2^32 for numpy."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
