"""CMA-ES by the library `cmaes`: Hansen, *The CMA Evolution Strategy: A Tutorial*, 2016.

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


def cma_draws(
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


def _number(among: Distribution) -> Number:
    assert not isinstance(among, ChoiceOf), "checked where the search was asked for"
    return among


def _point(among: dict[str, Number], hyperparams: Hyperparameters) -> np.ndarray:
    return np.array([_place(each, hyperparams[name]) for name, each in among.items()])


def _ends(among: Number) -> tuple[float, float]:
    """Return the range on the optimizer's scale. An integer covers 0.5 to each side, so all have equal width."""
    match among:
        case LogUniform():
            return math.log(among.low), math.log(among.high)
        case RandInt():
            return among.low - 0.5, among.high + 0.5
        case Uniform():
            return among.low, among.high


def _place(among: Number, value: JsonValue) -> float:
    assert isinstance(value, int | float)
    low, high = _ends(among)
    inside = clipped(among, value)
    return ((math.log(inside) if isinstance(among, LogUniform) else inside) - low) / (high - low)


def _value(among: Number, place: float) -> JsonValue:
    low, high = _ends(among)
    value = low + place * (high - low)
    match among:
        case LogUniform():
            return clipped(among, math.exp(value))
        case RandInt():
            return int(clipped(among, round(value)))
        case Uniform():
            return clipped(among, value)
