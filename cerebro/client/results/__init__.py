"""What runs return: objects, data frames and figures made from the state. The only importer of pandas and of plotly.

Each name is imported when it is first asked for: the web page reads experiment files with the client's code, and its
image has no pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.client.results.etl import EtlResult
    from cerebro.client.results.failed import failed_table
    from cerebro.client.results.fit import FitResult
    from cerebro.client.results.model import TrainedModel
    from cerebro.client.results.tables import prediction_table, test_table

__all__ = ["EtlResult", "FitResult", "TrainedModel", "failed_table", "prediction_table", "test_table"]

_HOMES = {
    "EtlResult": "etl",
    "FitResult": "fit",
    "TrainedModel": "model",
    "failed_table": "failed",
    "prediction_table": "tables",
    "test_table": "tables",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
