"""Random values from a search space, by Python's own generators. For samplers, and for lists that the client draws."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Distribution, LogUniform, RandInt, Space, Uniform
from cerebro.search.grids import nearest, num_values, value_at


def sample_from(distribution: Distribution, rng: random.Random) -> JsonValue:
    """Return a random value of a distribution."""
    match distribution:
        case Uniform(step=None):
            return rng.uniform(distribution.low, distribution.high)
        case LogUniform():
            return math.exp(rng.uniform(math.log(distribution.low), math.log(distribution.high)))
        case RandInt(log=True):
            # As Optuna does: an integer covers 0.5 to each side.
            low, high = math.log(distribution.low - 0.5), math.log(distribution.high + 0.5)
            return nearest(distribution, math.exp(rng.uniform(low, high)))
        case RandInt() if distribution.step == 1:
            return rng.randint(distribution.low, distribution.high)
        case ChoiceOf():
            return rng.choice(distribution.values)
        case _:
            return value_at(distribution, rng.randrange(num_values(distribution) or 1))


def full_configuration(space: Space, seed: str) -> Hyperparameters:
    """Return a value of every hyperparameter. Each has its own generator, so values are uncorrelated."""
    return {
        name: sample_from(distribution, random.Random(f"{seed}/{name}"))
        for name, distribution in space.items()
    }


def configuration(space: Space, seed: str) -> Hyperparameters:
    """Return a training config, by `full_configuration`."""
    return applicable(space, full_configuration(space, seed))


def applicable(space: Mapping[str, Distribution], values: Hyperparameters) -> Hyperparameters:
    """Return the values without hyperparameters whose conditions they don't meet.

    Values of hyperparameters that the space lacks are kept.
    """
    found = dict(values)
    for name, distribution in space.items():
        if distribution.when and name in found and not distribution.applies(found):
            del found[name]
    return found
