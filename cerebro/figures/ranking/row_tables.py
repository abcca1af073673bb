"""Selection of rows by the metrics per row of models, from their files. One model at a time is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cerebro.figures.ranking.results import require_mode
from cerebro.figures.ranking.row_values import Floats, OpenFile, RowValues
from cerebro.figures.ranking.rows import LABEL, PREDICTION, ComparedRow, ComparedRows, RowsRequest

Positions = npt.NDArray[np.int64]
"""Positions of rows in the order of the test."""

_PAIR = 2


class Means(NamedTuple):
    """Means of a metric.

    Attributes:
        of_rows: mean of each row over all models.
        of_models: mean of each model over all rows.
        is_binary: True if all values are 0 or 1.
    """

    of_rows: Floats
    of_models: dict[str, float]
    is_binary: bool


class RowTable(NamedTuple):
    """Values of some rows.

    Attributes:
        values: shape (rows, models).
        labels: label of each row; `None` if the test returned no ``label``.
        predictions: model -> prediction of each row, for models whose test returned a ``prediction``.
    """

    ids: np.ndarray[Any, Any]
    models: tuple[str, ...]
    values: Floats
    labels: Floats | None
    predictions: dict[str, Floats]


def means(reader: RowValues, models: Sequence[str] | None = None) -> Means:
    """Return the means of models, by default of all."""
    total, of_models, is_binary = None, {}, True
    for each in reader.of(models):
        total = each.values.copy() if total is None else np.add(total, each.values, out=total)
        of_models[each.model] = float(each.values.mean()) if len(each.values) else 0.0
        is_binary = is_binary and bool(((each.values == 0) | (each.values == 1)).all())
    assert total is not None
    return Means(total / len(of_models), of_models, is_binary)


def hardest_rows(reader: RowValues, models: Sequence[str], mode: str, size: int) -> Positions:
    """Return the rows with the worst means over models, worst first; equal ones in the order of the test."""
    return worst(means(reader, models).of_rows, mode)[:size]


def worst(of_rows: Floats, mode: str) -> Positions:
    """Return all rows, the worst mean first; equal ones in the order of the test."""
    order: Positions = np.argsort(of_rows if mode == "max" else -of_rows, kind="stable")
    return order


def most_different(reader: RowValues, first: str, second: str) -> Positions:
    """Return the rows where two models differ, largest difference first; equal ones in the order of the test."""
    one, other = (each.values for each in reader.of([first, second]))
    distance = np.abs(one - other)
    order: Positions = np.argsort(-distance, kind="stable")
    return order[: np.count_nonzero(distance)]


def row_table(reader: RowValues, models: Sequence[str], rows: Positions | None = None) -> RowTable:
    """Return the values of models on rows, by default on all rows."""
    chosen = slice(None) if rows is None else rows
    labels, predictions, columns = None, {}, []
    for each in reader.of(models):
        columns.append(each.values[chosen].copy())
        if labels is None and LABEL in each.metrics:
            labels = each.metrics[LABEL][chosen].copy()
        if PREDICTION in each.metrics:
            predictions[each.model] = each.metrics[PREDICTION][chosen].copy()
    return RowTable(reader.ids(rows), tuple(models), np.stack(columns, axis=1), labels, predictions)


def compare_rows(request: RowsRequest, open_file: OpenFile) -> ComparedRows:
    """Read the values per row of all models; return the hardest rows, and rows where two models disagree.

    Raises:
        DataError: the metric has no values per row or no known direction, a model has none, models were tested on
            different rows, or a file is damaged.
        OSError: the volume cannot be read.
    """
    reader = RowValues(request.files, request.metric, open_file)
    require_mode(request.mode, reader.metric)
    reader.require(request.disagree)
    found = means(reader)
    best = sorted(found.of_models, key=found.of_models.__getitem__, reverse=request.mode == "max")
    pair = request.disagree or tuple(best[:_PAIR])
    shown = tuple(dict.fromkeys((*pair, *best)))[: max(request.shown, len(pair))]
    hard = worst(found.of_rows, request.mode)[: request.size]
    different = most_different(reader, *pair) if len(pair) == _PAIR else np.zeros(0, np.int64)
    chosen = np.concatenate([hard, different[: request.size]])
    table = row_table(reader, shown, chosen)
    rows = [_row(table, found.of_rows[chosen], number) for number in range(len(chosen))]
    wrong = 0.0 if request.mode == "max" else 1.0
    return ComparedRows(
        metric=reader.metric,
        mode=request.mode,
        rows=len(found.of_rows),
        metrics=reader.metrics,
        all_models=tuple(best),
        models=shown,
        all_wrong=int(np.count_nonzero(found.of_rows == wrong)) if found.is_binary else None,
        hardest=tuple(rows[: len(hard)]),
        disagree=tuple(rows[len(hard) :]),
        different=len(different),
        missing=request.missing,
    )


def _row(table: RowTable, of_rows: Floats, number: int) -> ComparedRow:
    row_id = table.ids[number]
    return ComparedRow(
        id=row_id if isinstance(row_id, str) else int(row_id),
        mean=float(of_rows[number]),
        values=tuple(table.values[number].tolist()),
        label=None if table.labels is None else float(table.labels[number]),
        predictions=tuple(
            float(table.predictions[model][number]) if model in table.predictions else None
            for model in table.models
        )
        if table.predictions
        else (),
    )
