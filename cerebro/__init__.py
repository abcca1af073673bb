"""Cerebro: model selection for deep learning by model hopping.

What a notebook needs is here; everything else is a service's. Importing this loads nothing: every service and the
supervisor import the package, few need what a notebook needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.client.experiment import Experiment
    from cerebro.client.search.choices import (
        ASHA,
        CMA,
        GP,
        PBT,
        TPE,
        Above,
        Below,
        Hyperband,
        Median,
        Plateau,
        Random,
    )
    from cerebro.client.search.space import choice, loguniform, randint, uniform
    from cerebro.contract.records import Locator, Locators
    from cerebro.spec import ETLSpec, Hints, SubEpochSpec

__all__ = [
    "ASHA",
    "CMA",
    "GP",
    "PBT",
    "TPE",
    "Above",
    "Below",
    "ETLSpec",
    "Experiment",
    "Hints",
    "Hyperband",
    "Locator",
    "Locators",
    "Median",
    "Plateau",
    "Random",
    "SubEpochSpec",
    "choice",
    "loguniform",
    "randint",
    "uniform",
]

_HOMES = {
    "ASHA": "cerebro.client.search.choices",
    "CMA": "cerebro.client.search.choices",
    "GP": "cerebro.client.search.choices",
    "PBT": "cerebro.client.search.choices",
    "TPE": "cerebro.client.search.choices",
    "Above": "cerebro.client.search.choices",
    "Below": "cerebro.client.search.choices",
    "ETLSpec": "cerebro.spec",
    "Experiment": "cerebro.client.experiment",
    "Hints": "cerebro.spec",
    "Hyperband": "cerebro.client.search.choices",
    "Locator": "cerebro.contract.records",
    "Locators": "cerebro.contract.records",
    "Median": "cerebro.client.search.choices",
    "Plateau": "cerebro.client.search.choices",
    "Random": "cerebro.client.search.choices",
    "SubEpochSpec": "cerebro.spec",
    "choice": "cerebro.client.search.space",
    "loguniform": "cerebro.client.search.space",
    "randint": "cerebro.client.search.space",
    "uniform": "cerebro.client.search.space",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cerebro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
