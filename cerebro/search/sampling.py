"""Random values from a search space, by Python's own generators. For samplers, and for lists that the client draws."""

from __future__ import annotations

import math
import random

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Distribution, LogUniform, RandInt, Space, Uniform


def sample_from(distribution: Distribution, rng: random.Random) -> JsonValue:
    """Return a random value of a distribution."""
    match distribution:
        case Uniform():
            return rng.uniform(distribution.low, distribution.high)
        case LogUniform():
            return math.exp(rng.uniform(math.log(distribution.low), math.log(distribution.high)))
        case RandInt():
            return rng.randint(distribution.low, distribution.high)
        case ChoiceOf():
            return rng.choice(distribution.values)


def configuration(space: Space, seed: str) -> Hyperparameters:
    """Return a training config. Each hyperparameter has its own generator, so values are uncorrelated."""
    return {
        name: sample_from(distribution, random.Random(f"{seed}/{name}"))
        for name, distribution in space.items()
    }
