"""The sampler `cerebro.CMA`: CMA-ES by the library `cmaes`; Hansen, *The CMA Evolution Strategy: A Tutorial*, 2016.

Numbers are scaled to [0, 1], log-uniform ranges by their logarithm. Only `ask` is random. Each call rebuilds
the optimizer state from the measured models, one generation at a time in the order of addition, then asks
once for each number with its own generator. A generation is a slice of the history: a model suggested while
others still train counts when it is measured, although its suggestion came from an older mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cmaes
import numpy as np
from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import CMA, ChoiceOf, Distribution, LogUniform, RandInt, Uniform
from cerebro.search.history import Past, observations
from cerebro.search.samplers.dimensions import clipped, generator_seed

Number = Uniform | LogUniform | RandInt


def cma_suggestions(
    choice: CMA,
    dimensions: Mapping[str, Distribution],
    history: Sequence[Past],
    numbers: Sequence[int],
    seed: int,
) -> list[Hyperparameters]:
    """Return values of the dimensions for each number. Needs two or more dimensions, all numeric."""
    coordinates = {name: _number(each) for name, each in dimensions.items()}
    bounds = np.tile([0.0, 1.0], (len(coordinates), 1))
    optimizer = cmaes.CMA(
        mean=np.full(len(coordinates), 0.5),
        sigma=choice.sigma,
        bounds=bounds,
        population_size=choice.population,
        seed=generator_seed(seed, 0),
    )
    size = optimizer.population_size
    observed = observations(history, size)
    scored = [] if observed is None else observed.scored
    for begin in range(0, len(scored) - size + 1, size):
        # `cmaes` minimizes.
        optimizer.tell(
            [(_point(coordinates, values), -score) for values, score in scored[begin : begin + size]]
        )
    found = []
    for number in numbers:
        optimizer.reseed_rng(generator_seed(seed, number))
        point = optimizer.ask()
        found.append(
            {
                name: _value(each, float(place))
                for (name, each), place in zip(coordinates.items(), point, strict=True)
            }
        )
    return found


def _number(distribution: Distribution) -> Number:
    assert not isinstance(distribution, ChoiceOf), "the client checks it in the request"
    return distribution


def _point(numbers: dict[str, Number], hyperparams: Hyperparameters) -> np.ndarray:
    return np.array([_place(each, hyperparams[name]) for name, each in numbers.items()])


def _ends(number: Number) -> tuple[float, float]:
    """Return the range on the optimizer's scale. An integer covers 0.5 to each side, so all have equal width."""
    match number:
        case LogUniform():
            return math.log(number.low), math.log(number.high)
        case RandInt():
            return number.low - 0.5, number.high + 0.5
        case Uniform():
            return number.low, number.high


def _place(number: Number, value: JsonValue) -> float:
    assert isinstance(value, int | float)
    low, high = _ends(number)
    inside = clipped(number, value)
    return ((math.log(inside) if isinstance(number, LogUniform) else inside) - low) / (high - low)


def _value(number: Number, place: float) -> JsonValue:
    low, high = _ends(number)
    value = low + place * (high - low)
    match number:
        case LogUniform():
            return clipped(number, math.exp(value))
        case RandInt():
            return int(clipped(number, round(value)))
        case Uniform():
            return clipped(number, value)
