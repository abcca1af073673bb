"""Data frames of test and prediction runs, and helpers for rows of data frames.

`EvaluationMixin` returns them; `fit` and `sub_epochs` use the helpers. Predictions of all tasks are read into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EvaluatePlan
from cerebro.data.tables.whole_tables import read_columns
from cerebro.figures import tested
from cerebro.state import Run


def test_table(run: Run) -> pd.DataFrame:
    """Return the metrics of a test run, one row per model.

    A column ``parts`` has the number of partitions if metrics are combined from several.
    """
    results = tested(run)
    has_parts = any(result.parts > 1 for result in results)
    rows = [
        merge_columns(
            {"model": result.model, "epoch": result.epoch, "rows": result.rows}
            | ({"parts": result.parts} if has_parts else {}),
            result.metrics,
            "metric",
        )
        for result in results
    ]
    return pd.DataFrame(rows).set_index("model")


def prediction_table(run: Run, files: Files) -> pd.DataFrame:
    """Return the predictions of a run, indexed by row id, or by model and id."""
    assert isinstance(run.plan, EvaluatePlan)
    frames = []
    for task in run.tasks.by_key.values():
        if task.result is not None:
            frame = pd.DataFrame(read_columns(files.shared(task.result.output)))
            frames.append(frame.assign(model=task.key.model))
    filled = (
        [frame for frame in frames if len(frame)] or frames[:1] or [pd.DataFrame(columns=["id", "model"])]
    )
    table = pd.concat(filled, ignore_index=True)
    if len(run.plan.models) == 1:
        return table.drop(columns="model").set_index("id").sort_index()
    return table.set_index(["model", "id"]).sort_index()


def merge_columns(facts: dict[str, Any], values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Add user values to a row; ``name (kind)`` replaces a name that `facts` already has."""
    return facts | {f"{name} ({kind})" if name in facts else name: value for name, value in values.items()}


def cell(value: object) -> object:
    """Convert a hyperparameter to a cell value: lists and dicts become text."""
    return str(value) if isinstance(value, list | dict) else value
