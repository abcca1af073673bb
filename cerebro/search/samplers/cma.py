"""The sampler `cerebro.CMA`: CMA-ES by the library `cmaes`; Hansen, *The CMA Evolution Strategy: A Tutorial*, 2016.

Numbers are scaled to [0, 1], logarithmic ranges by their logarithm. A model without a conditional number counts with
the distribution's present mean, which moves nothing in this direction. Only `ask` is random. Each call rebuilds
the optimizer state from the measured models, one generation at a time in the order of addition, then asks
once for each number with its own generator. A generation is a slice of the history: a model suggested while
others still train counts when it is measured, although its suggestion came from an older mean.

With earlier fits, the initial distribution is estimated from their best tenth (Nomura et al., *Warm Starting CMA-ES for
Hyperparameter Optimization*, AAAI 2021) instead of `CMA.sigma`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cmaes
import numpy as np
from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import CMA, ChoiceOf, Distribution, LogUniform, RandInt, Uniform
from cerebro.search.grids import nearest
from cerebro.search.history import Past, observations
from cerebro.search.samplers.dimensions import generator_seed

_FEWEST = 10
"""Fewest earlier models: a tenth of them is one model."""

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
    middle = np.full(len(coordinates), 0.5)
    mean, sigma, covariance = _initial(coordinates, history, middle) or (middle, choice.sigma, None)
    optimizer = cmaes.CMA(
        mean=mean,
        sigma=sigma,
        cov=covariance,
        bounds=bounds,
        population_size=choice.population,
        seed=generator_seed(seed, 0),
    )
    size = optimizer.population_size
    observed = observations([past for past in history if not past.is_earlier], size)
    scored = [] if observed is None else observed.scored
    for begin in range(0, len(scored) - size + 1, size):
        # `cmaes` minimizes.
        # A copy: `tell` changes the mean.
        mean = np.array(optimizer.mean)
        optimizer.tell(
            [(_point(coordinates, values, mean), -score) for values, score in scored[begin : begin + size]]
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


def _initial(
    coordinates: dict[str, Number], history: Sequence[Past], middle: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Return mean, step size and covariance by the models of earlier fits, or `None` without values."""
    earlier = [past for past in history if past.is_earlier]
    observed = observations(earlier, _FEWEST) or observations(earlier, 1)
    if observed is None:
        return None
    solutions = [(_point(coordinates, values, middle), -score) for values, score in observed.scored]
    share = 0.1 if len(solutions) >= _FEWEST else min(1.0, 1.5 / len(solutions))
    mean, sigma, covariance = cmaes.get_warm_start_mgd(solutions, gamma=share)
    return mean, sigma, covariance


def _number(distribution: Distribution) -> Number:
    assert not isinstance(distribution, ChoiceOf), "the client checks it in the request"
    return distribution


def _point(numbers: dict[str, Number], hyperparams: Hyperparameters, mean: np.ndarray) -> np.ndarray:
    return np.array(
        [
            _place(each, hyperparams[name]) if name in hyperparams else place
            for (name, each), place in zip(numbers.items(), mean, strict=True)
        ]
    )


def _is_log(number: Number) -> bool:
    return isinstance(number, LogUniform) or (isinstance(number, RandInt) and number.log)


def _ends(number: Number) -> tuple[float, float]:
    """Return the range on the optimizer's scale. A value of finitely many covers half a step to each side."""
    half = 0.0 if isinstance(number, LogUniform) else (number.step or 0.0) / 2
    low, high = number.low - half, number.high + half
    return (math.log(low), math.log(high)) if _is_log(number) else (low, high)


def _place(number: Number, value: JsonValue) -> float:
    assert isinstance(value, int | float)
    low, high = _ends(number)
    inside = nearest(number, value)
    return ((math.log(inside) if _is_log(number) else inside) - low) / (high - low)


def _value(number: Number, place: float) -> JsonValue:
    low, high = _ends(number)
    value = low + place * (high - low)
    return nearest(number, math.exp(value) if _is_log(number) else value)
