"""Cerebro: model selection for deep learning by model hopping.

What a notebook needs is here; everything else is a service's. Importing this loads nothing: every service and the
supervisor import the package, few need what a notebook needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.client.experiment import Experiment
    from cerebro.client.search import choice, loguniform, randint, uniform
    from cerebro.contract.records import Locator, Locators
    from cerebro.spec import ETLSpec, Hints, SubEpochSpec

__all__ = [
    "ETLSpec",
    "Experiment",
    "Hints",
    "Locator",
    "Locators",
    "SubEpochSpec",
    "choice",
    "loguniform",
    "randint",
    "uniform",
]

_HOMES = {
    "ETLSpec": "cerebro.spec",
    "Experiment": "cerebro.client.experiment",
    "Hints": "cerebro.spec",
    "Locator": "cerebro.contract.records",
    "Locators": "cerebro.contract.records",
    "SubEpochSpec": "cerebro.spec",
    "choice": "cerebro.client.search",
    "loguniform": "cerebro.client.search",
    "randint": "cerebro.client.search",
    "uniform": "cerebro.client.search",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cerebro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
