"""Cerebro: model selection for deep learning by model hopping.

What a notebook needs is here; everything else is a service's. Importing this imports neither torch nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cerebro.contract.records import Locator, Locators
from cerebro.search import choice, loguniform, randint, uniform
from cerebro.spec import ETLSpec, SubEpochSpec

if TYPE_CHECKING:
    from cerebro.experiment import Experiment

__all__ = [
    "ETLSpec",
    "Experiment",
    "Locator",
    "Locators",
    "SubEpochSpec",
    "choice",
    "loguniform",
    "randint",
    "uniform",
]


def __getattr__(name: str) -> Any:
    # Services import this package for the contract; only a notebook needs the client and what it draws in.
    if name == "Experiment":
        from cerebro.experiment import Experiment

        return Experiment
    raise AttributeError(f"module 'cerebro' has no attribute {name!r}")
