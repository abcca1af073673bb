"""Results of runs as objects, data frames and figures.

`EtlResult`, `FitResult`, `TestResult` and `TrainedModel` are the public classes; `failed_table`, `test_table`,
`rows_table` and `prediction_table` build data frames. Everything is computed from the experiment's state and result
files. Only this folder imports pandas and plotly, and names are imported on first access, because the web page uses
client code and its image has no pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.client.results.columns import warning_line
    from cerebro.client.results.etl import EtlResult
    from cerebro.client.results.failed_rows import failed_table
    from cerebro.client.results.fit import FitResult
    from cerebro.client.results.model import TrainedModel
    from cerebro.client.results.tables import TestResult, prediction_table, rows_table, test_table

__all__ = [
    "EtlResult",
    "FitResult",
    "TestResult",
    "TrainedModel",
    "failed_table",
    "prediction_table",
    "rows_table",
    "test_table",
    "warning_line",
]

_MODULES = {
    "EtlResult": "etl",
    "FitResult": "fit",
    "TestResult": "tables",
    "TrainedModel": "model",
    "failed_table": "failed_rows",
    "prediction_table": "tables",
    "rows_table": "tables",
    "test_table": "tables",
    "warning_line": "columns",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
