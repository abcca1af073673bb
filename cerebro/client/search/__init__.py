"""Search spaces and search requests: conversion of a user's arguments into the contract's types.

`space.py` turns a search space into a list of configurations, or into distributions for a search. `requests.py` checks
the arguments of a search, such as procedure, sampler, stop rules and limits. The classes themselves (`ASHA`, `TPE`,
`Plateau`) are in `cerebro.contract.search`.
"""

from __future__ import annotations

from cerebro.client.search.space import (
    SearchSpace,
    choice,
    configurations,
    first_configuration,
    loguniform,
    randint,
    uniform,
)

__all__ = [
    "SearchSpace",
    "choice",
    "configurations",
    "first_configuration",
    "loguniform",
    "randint",
    "uniform",
]
