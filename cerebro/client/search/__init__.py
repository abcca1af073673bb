"""Search spaces and search requests: conversion of a user's arguments into the contract's types.

`distributions.py` has `choice` and the others. `space.py` turns a search space into a list of configurations, or into
distributions for a search; `grid.py` checks conditions. `requests.py` checks the arguments of a search, such as
procedure, sampler, stop rules and limits. The classes themselves (`ASHA`, `TPE`,
`Plateau`) are in `cerebro.contract.search`.
"""

from __future__ import annotations

from cerebro.client.search.distributions import choice, loguniform, randint, uniform
from cerebro.client.search.space import SearchSpace, conditional_space, configurations, first_configuration

__all__ = [
    "SearchSpace",
    "choice",
    "conditional_space",
    "configurations",
    "first_configuration",
    "loguniform",
    "randint",
    "uniform",
]
