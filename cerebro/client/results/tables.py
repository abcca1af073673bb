"""Data frames of test and prediction runs, and helpers for rows of data frames.

`EvaluationMixin` returns them; `fit` and `sub_epochs` use the helpers. Predictions of all tasks are read into memory;
values per row of one model at a time, and of the returned rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from cerebro.client.files import Files
from cerebro.contract.runs import EvaluatePlan
from cerebro.data.tables.whole_tables import read_columns
from cerebro.errors import DataError
from cerebro.figures import tested
from cerebro.figures.ranking.folds import FoldRow, fold_rows
from cerebro.figures.ranking.repeats import RepeatRow, repeat_rows
from cerebro.figures.ranking.results import CONFIDENCE, Ranking, RankingRequest, require_mode
from cerebro.figures.ranking.row_tables import Positions, hardest_rows, most_different, row_table
from cerebro.figures.ranking.row_values import OpenFile, RowValues
from cerebro.figures.ranking.rows import LABEL, PREDICTION
from cerebro.state import Run

MAX_VALUES = 20_000_000
"""Maximum number of values of a table of rows: 160 MB."""


class TestResult(pd.DataFrame):
    """Metrics of tested models, one row per model: a data frame that can rank the models and show their rows."""

    __test__ = False  # for pytest
    _rank: Callable[..., Ranking] | None = None
    _rows: Callable[..., pd.DataFrame] | None = None

    def ranking(
        self,
        *,
        metric: str = "",
        mode: Literal["max", "min", ""] = "",
        confidence: float = CONFIDENCE,
        seed: int = 0,
    ) -> Ranking:
        """Rank the models, with shared ranks for models that the rows cannot separate. See `Experiment.ranking`.

        Raises:
            DataError: as of `Experiment.ranking`, or this is a copy of a result.

        Example::

            print(experiment.run_test(["m03", "m07"]).ranking())
        """
        if self._rank is None:
            raise DataError(
                "this table is a copy of a test's result: call experiment.ranking() with the run's id instead"
            )
        return self._rank(metric=metric, mode=mode, confidence=confidence, seed=seed)

    def rows(
        self,
        *,
        hardest: int | None = None,
        disagree: tuple[str, str] | None = None,
        models: Sequence[str] | None = None,
        metric: str = "",
        mode: Literal["max", "min", ""] = "",
    ) -> pd.DataFrame:
        """Return rows with the metric per row of each model. See `Experiment.rows`.

        The column ``rows`` of this table, its number of rows, is ``table["rows"]``.

        Raises:
            DataError: as of `Experiment.rows`, or this is a copy of a result.

        Example::

            table = experiment.run_test(["m03", "m07"])
            table.rows(disagree=("m03", "m07"))
        """
        if self._rows is None:
            raise DataError(
                "this table is a copy of a test's result: call experiment.rows() with the run's id instead"
            )
        return self._rows(hardest=hardest, disagree=disagree, models=models, metric=metric, mode=mode)


def test_table(
    run: Run, rank: Callable[..., Ranking] | None, rows_of: Callable[..., pd.DataFrame] | None
) -> TestResult:
    """Return the metrics of a test run, one row per model.

    Args:
        rank: ranks the models of the run; without it, the result cannot.
        rows_of: returns rows of the run; without it, the result cannot.

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
    table = TestResult(pd.DataFrame(rows).set_index("model"))
    object.__setattr__(table, "_rank", rank)  # pandas takes no attributes that it doesn't know
    object.__setattr__(table, "_rows", rows_of)
    return table


def rows_table(
    request: RankingRequest,
    open_file: OpenFile,
    *,
    hardest: int | None = None,
    disagree: Sequence[str] = (),
    models: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return rows of a test run, indexed by id; see `Experiment.rows`.

    Raises:
        DataError: see `Experiment.rows`.
    """
    reader = RowValues(request.files, request.metric, open_file)
    chosen = tuple(dict.fromkeys((*disagree, *(models or (() if disagree else request.files)))))
    reader.require(chosen)
    positions: Positions | None = None
    if disagree:
        positions = most_different(reader, *disagree)
    elif hardest is not None:
        require_mode(request.mode, reader.metric)
        positions = hardest_rows(reader, chosen, request.mode, hardest)
    num_values = len(chosen) * (reader.num_rows if positions is None else len(positions))
    if num_values > MAX_VALUES:
        raise DataError(
            f"the table would have {num_values:,} values of {len(chosen):,} models, more than {MAX_VALUES:,}: pass "
            "hardest=100, disagree=(two models) or models=(a few models)"
        )
    found = row_table(reader, chosen, positions)
    columns: dict[str, Any] = {} if found.labels is None else {LABEL: found.labels}
    columns |= {model: found.values[:, number] for number, model in enumerate(chosen)}
    columns |= {f"{model} {PREDICTION}": values for model, values in found.predictions.items()}
    columns["mean"] = found.values.mean(axis=1)
    if disagree:
        columns["difference"] = found.values[:, 0] - found.values[:, 1]
    return pd.DataFrame(columns, index=pd.Index(found.ids, name="id"))


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


def compared_cells(metric: str, row: RepeatRow | FoldRow | None) -> dict[str, Any]:
    """Return the columns of a model's repeats, or of a configuration's folds; empty cells without a row."""
    return {
        "tied_rank": row.rank if row else None,
        f"{metric} mean": row.mean if row else None,
        f"{metric} std": row.std if row else None,
    }


def repeat_table(run: Run) -> pd.DataFrame:
    """Return one row per repeated model of a fit; see `FitResult.repeats`."""
    request = run.fit_request
    metric, seeds = request.metric, request.repeats.seeds if request.repeats else 0
    numbers = range(request.seed + 1, request.seed + seeds + 1)
    values = [metric, f"{metric} mean", f"{metric} std", *(f"seed {number}" for number in numbers)]
    rows = [
        {"model": row.model, metric: row.value, "seeds": len(row.values)}
        | compared_cells(metric, row)
        | {f"seed {number}": row.values.get(number) for number in numbers}
        for row in repeat_rows(run)
    ]
    frame = pd.DataFrame(rows, columns=["model", "tied_rank", *values[:3], "seeds", *values[3:]])
    types = {"tied_rank": "Int64", "seeds": "int64"} | dict.fromkeys(values, "float64")
    return frame.astype(types).set_index("model")


def fold_table(run: Run) -> pd.DataFrame:
    """Return one row per configuration of a cross-validation; see `FitResult.folds`."""
    request = run.fit_request
    folds = [f"fold {number}" for number in range(1, (request.folds or 0) + 1)]
    values = [f"{request.metric} mean", f"{request.metric} std", *folds]
    found = fold_rows(run)
    rows = [
        merge_columns(
            {"configuration": row.configuration}
            | compared_cells(request.metric, row)
            | {"best_epoch": row.epoch}
            | dict(zip(folds, row.values or [None] * len(folds), strict=True))
            | {"state": row.state},
            {name: cell(value) for name, value in row.hyperparams.items()},
            "hyperparameter",
        )
        for row in found
    ]
    columns = ["configuration", "tied_rank", *values[:2], "best_epoch", *folds, "state"]
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    types = {"tied_rank": "Int64", "best_epoch": "Int64"} | dict.fromkeys(values, "float64")
    return frame.astype(types).set_index("configuration")


def merge_columns(facts: dict[str, Any], values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Add user values to a row; ``name (kind)`` replaces a name that `facts` already has."""
    return facts | {f"{name} ({kind})" if name in facts else name: value for name, value in values.items()}


def cell(value: object) -> object:
    """Convert a hyperparameter to a cell value: lists and dicts become text."""
    return str(value) if isinstance(value, list | dict) else value
