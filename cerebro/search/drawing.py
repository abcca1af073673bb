"""Random values from a search space, by Python's own generators."""

from __future__ import annotations

import math
import random

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ChoiceOf, Distribution, LogUniform, RandInt, Space, Uniform


def drawn_from(among: Distribution, rng: random.Random) -> JsonValue:
    """Return a random value of a distribution."""
    match among:
        case Uniform():
            return rng.uniform(among.low, among.high)
        case LogUniform():
            return math.exp(rng.uniform(math.log(among.low), math.log(among.high)))
        case RandInt():
            return rng.randint(among.low, among.high)
        case ChoiceOf():
            return rng.choice(among.values)


def configuration(space: Space, seed: str) -> Hyperparameters:
    """Return a training config. Each hyperparameter has its own generator, so values are uncorrelated."""
    return {name: drawn_from(among, random.Random(f"{seed}/{name}")) for name, among in space.items()}
