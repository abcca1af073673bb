"""CMA-ES: Hansen, *The CMA Evolution Strategy: A Tutorial*, 2016; by the library `cmaes`.

Numbers are scaled to [0, 1], logarithms where the range is one of logarithms. Only `ask` is random, so the state is
made by telling all that was measured, a generation at a time in the order in which models were added, and a draw is one
ask with a generator of its own. Generations are those of the history: who is drawn while others still train is told
when it is measured, whatever mean it was drawn around.
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
    """Values of the dimensions, for each number; they are two numbers or more, and no choices."""
    among = {name: _number(each) for name, each in dimensions.items()}
    bounds = np.tile([0.0, 1.0], (len(among), 1))
    optimizer = cmaes.CMA(
        mean=np.full(len(among), 0.5),
        sigma=choice.sigma,
        bounds=bounds,
        population_size=choice.population,
        seed=generator_seed(seed, 0),
    )
    size = optimizer.population_size
    seen = observations(history, size)
    scored = [] if seen is None else seen.scored
    for begin in range(0, len(scored) - size + 1, size):
        # It looks for the least.
        optimizer.tell([(_point(among, values), -score) for values, score in scored[begin : begin + size]])
    found = []
    for number in numbers:
        optimizer.reseed_rng(generator_seed(seed, number))
        point = optimizer.ask()
        found.append(
            {
                name: _value(each, float(place))
                for (name, each), place in zip(among.items(), point, strict=True)
            }
        )
    return found


def _number(among: Distribution) -> Number:
    assert not isinstance(among, ChoiceOf), "checked where the search was asked for"
    return among


def _point(among: dict[str, Number], hyperparams: Hyperparameters) -> np.ndarray:
    return np.array([_place(each, hyperparams[name]) for name, each in among.items()])


def _ends(among: Number) -> tuple[float, float]:
    """An integer has the length 1 around it, so that all have the same."""
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
