"""Data frames of test and prediction runs, and what all frames have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EvaluatePlan
from cerebro.data.tables import read_columns
from cerebro.figures import tested
from cerebro.state import Run


def test_table(run: Run) -> pd.DataFrame:
    """Metrics of a test run, one row per model. Only where they are put together from parts of the split, a column
    ``parts`` says from how many; see `cerebro.figures.tested`.
    """
    found = tested(run)
    has_parts = any(one.parts > 1 for one in found)
    rows = [
        beside(
            {"model": one.model, "epoch": one.epoch, "rows": one.rows}
            | ({"parts": one.parts} if has_parts else {}),
            one.metrics,
            "metric",
        )
        for one in found
    ]
    return pd.DataFrame(rows).set_index("model")


def prediction_table(run: Run, files: Files) -> pd.DataFrame:
    """Predictions of a run as one table keyed by row id; with several models, keyed by (model, id).

    Without an output that has rows it is empty.
    """
    assert isinstance(run.plan, EvaluatePlan)
    frames = []
    for task in run.tasks.values():
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


def beside(facts: dict[str, Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A row: the facts, and a user's values beside them, whatever the user called them."""
    return facts | {f"{name} ({what})" if name in facts else name: value for name, value in values.items()}


def cell(value: object) -> object:
    """A hyper-parameter as it fits into a frame."""
    return str(value) if isinstance(value, list | dict) else value
