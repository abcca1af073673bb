"""Cerebro: model selection for deep learning by model hopping.

The package exports the API for notebooks: experiments, specs, searches, stop rules and data helpers. Names are
imported on first access, because services import this package too. A new public name goes into
`_MODULES`, `__all__` and the type-checking imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.client.data_folder import data_folder
    from cerebro.client.experiment import Experiment
    from cerebro.client.failure_rules import FailureRule
    from cerebro.client.limits import Budget, Limits
    from cerebro.client.models.registry import load_model
    from cerebro.client.requests.run_requests import Scheduling
    from cerebro.client.requests.techniques import Parallelism
    from cerebro.client.search.distributions import choice, loguniform, randint, uniform
    from cerebro.client.search.requests import Search
    from cerebro.contract.records import Locator, Locators
    from cerebro.contract.search import (
        ASHA,
        CMA,
        GP,
        PBT,
        TPE,
        Above,
        Below,
        Earlier,
        Hyperband,
        Median,
        Plateau,
        Random,
        Repeat,
    )
    from cerebro.frozen import Frozen
    from cerebro.keras.spec import KerasSubEpochSpec
    from cerebro.ragged_rows import Ragged, ragged
    from cerebro.spec import ETLSpec, Hints, PerRow, Ratio, SubEpochSpec
    from cerebro.steps.spec import StepSpec

__all__ = [
    "ASHA",
    "CMA",
    "GP",
    "PBT",
    "TPE",
    "Above",
    "Below",
    "Budget",
    "ETLSpec",
    "Earlier",
    "Experiment",
    "FailureRule",
    "Frozen",
    "Hints",
    "Hyperband",
    "KerasSubEpochSpec",
    "Limits",
    "Locator",
    "Locators",
    "Median",
    "Parallelism",
    "PerRow",
    "Plateau",
    "Ragged",
    "Random",
    "Ratio",
    "Repeat",
    "Scheduling",
    "Search",
    "StepSpec",
    "SubEpochSpec",
    "choice",
    "data_folder",
    "load_model",
    "loguniform",
    "ragged",
    "randint",
    "uniform",
]

_MODULES = {
    "ASHA": "cerebro.contract.search",
    "CMA": "cerebro.contract.search",
    "GP": "cerebro.contract.search",
    "PBT": "cerebro.contract.search",
    "TPE": "cerebro.contract.search",
    "Above": "cerebro.contract.search",
    "Below": "cerebro.contract.search",
    "Budget": "cerebro.client.limits",
    "ETLSpec": "cerebro.spec",
    "Earlier": "cerebro.contract.search",
    "Experiment": "cerebro.client.experiment",
    "FailureRule": "cerebro.client.failure_rules",
    "Frozen": "cerebro.frozen",
    "Hints": "cerebro.spec",
    "Hyperband": "cerebro.contract.search",
    "KerasSubEpochSpec": "cerebro.keras.spec",
    "Limits": "cerebro.client.limits",
    "Locator": "cerebro.contract.records",
    "Locators": "cerebro.contract.records",
    "Median": "cerebro.contract.search",
    "Parallelism": "cerebro.client.requests.techniques",
    "Plateau": "cerebro.contract.search",
    "Ragged": "cerebro.ragged_rows",
    "Random": "cerebro.contract.search",
    "PerRow": "cerebro.spec",
    "Ratio": "cerebro.spec",
    "Repeat": "cerebro.contract.search",
    "Scheduling": "cerebro.client.requests.run_requests",
    "Search": "cerebro.client.search.requests",
    "StepSpec": "cerebro.steps.spec",
    "SubEpochSpec": "cerebro.spec",
    "choice": "cerebro.client.search.distributions",
    "data_folder": "cerebro.client.data_folder",
    "load_model": "cerebro.client.models.registry",
    "loguniform": "cerebro.client.search.distributions",
    "ragged": "cerebro.ragged_rows",
    "randint": "cerebro.client.search.distributions",
    "uniform": "cerebro.client.search.distributions",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        try:
            return getattr(importlib.import_module(_MODULES[name]), name)
        except ModuleNotFoundError as cause:
            from cerebro.errors import MissingPackageError

            raise MissingPackageError.from_import(cause) from cause
    raise AttributeError(f"module 'cerebro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
