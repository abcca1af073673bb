"""What a user writes of a search: the space, the procedure, the sampler and the stop rules; and what is asked of it."""

from __future__ import annotations

from cerebro.client.search.space import (
    Distribution,
    SearchSpace,
    choice,
    configurations,
    first_configuration,
    loguniform,
    randint,
    uniform,
)

__all__ = [
    "Distribution",
    "SearchSpace",
    "choice",
    "configurations",
    "first_configuration",
    "loguniform",
    "randint",
    "uniform",
]
