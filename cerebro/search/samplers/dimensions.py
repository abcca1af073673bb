"""The dimensions of a search space, for all samplers: hyperparameters with more than one value. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Distribution, LogUniform, RandInt, Space, Uniform
from cerebro.search.history import Past


def varying(space: Space) -> dict[str, Distribution]:
    """Return the space without fixed hyperparameters."""
    return {name: distribution for name, distribution in space.items() if not _is_fixed(distribution)}


def _is_fixed(distribution: Distribution) -> bool:
    return (
        len(distribution.values) == 1
        if isinstance(distribution, ChoiceOf)
        else distribution.low == distribution.high
    )


def within(history: Sequence[Past], dimensions: Mapping[str, Distribution]) -> list[Past]:
    """Return the models with values inside the space. Users may add models with any values."""
    axes = [(name, _is_value_of(distribution)) for name, distribution in dimensions.items()]
    return [past for past in history if _fits(past.hyperparams, axes)]


def outside(values: Hyperparameters, dimensions: Mapping[str, Distribution]) -> str | None:
    """Return the first dimension whose value is not in the space."""
    return next((name for name, each in dimensions.items() if not _is_value_of(each)(values[name])), None)


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
        return lambda value: type(value) is int and low <= value <= high
    # exp(log(high)) may exceed `high` by a rounding error.
    least, most = low - abs(low) * 1e-12, high + abs(high) * 1e-12
    return lambda value: type(value) in (float, int) and least <= value <= most  # type: ignore[operator]


def clipped(distribution: Uniform | LogUniform | RandInt, value: float) -> float:
    """Clip a value to the range."""
    return (
        distribution.low
        if value < distribution.low
        else distribution.high
        if value > distribution.high
        else value
    )


def generator_seed(seed: int, number: int) -> int:
    """Return the generator seed of a suggestion, below 2^32 for numpy."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
