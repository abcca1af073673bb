"""Ranking of models from the files of metrics per row, one model at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from cerebro.data.tables.whole_tables import read_arrays
from cerebro.errors import DataError
from cerebro.figures.ranking.results import RankedModel, Ranking, RankingRequest
from cerebro.figures.ranking.statistics import (
    MAX_MODELS,
    MIN_ROWS,
    Floats,
    RowGroups,
    better_models,
    bootstrap,
    ranks,
)

Table = dict[str, "np.ndarray[Any, Any]"]


def rank_models(request: RankingRequest, open_file: Callable[[str], BinaryIO]) -> Ranking:
    """Read the values per row of all models and rank the models.

    Args:
        open_file: opens a file of the shared volume.

    Raises:
        DataError: the metric has no values per row or no known direction, models were tested on different rows, there
            are too few rows or too many models, or a file is damaged.
        OSError: the volume cannot be read.
    """

    def read(name: str) -> Table:
        with open_file(name) as file:
            return read_arrays(file, name)

    if len(request.files) > MAX_MODELS:
        raise DataError(
            f"the test has {len(request.files):,} models: rank up to {MAX_MODELS:,} in one test run, such as the best"
        )
    first = next(iter(request.files.values()))
    metrics = tuple(name for name in read(first[0]) if name != "id")
    metric = _metric(request, metrics)
    if not request.mode:
        raise DataError(f"it is unknown whether a higher {metric} is better: pass mode='max' or mode='min'")
    ids: np.ndarray[Any, Any] | None = None
    groups: RowGroups | None = None
    means, residuals = [], []
    for model, files in request.files.items():
        tables = [read(name) for name in files]
        found, values = _column(tables, "id"), _values(tables, metric, model)
        if ids is None or groups is None:
            ids, groups = found, RowGroups(len(found), request.seed)
            if len(found) < MIN_ROWS:
                raise DataError(
                    f"the models were tested on {len(found)} rows: a ranking needs {MIN_ROWS} or more"
                )
        elif not np.array_equal(found, ids):
            raise DataError(
                f"{model} was tested on other rows than {next(iter(request.files))}: test them in one run"
            )
        mean, sums = groups.residuals(values)
        means.append(mean)
        residuals.append(sums)
    assert groups is not None
    request = request.model_copy(update={"metric": metric})
    return _ranked(request, metrics, np.array(means), np.stack(residuals, axis=1), groups.rows)


def _ranked(
    request: RankingRequest, metrics: tuple[str, ...], means: Floats, residuals: Floats, rows: int
) -> Ranking:
    estimates = bootstrap(
        residuals, rows, resamples=request.resamples, confidence=request.confidence, seed=request.seed
    )
    scores = means if request.mode == "max" else -means
    better = better_models(scores, estimates, request.confidence)
    found = ranks(scores, better)
    names = list(request.files)
    order = np.lexsort((-scores, found))
    return Ranking(
        metric=request.metric,
        mode="min" if request.mode == "min" else "max",
        confidence=request.confidence,
        resamples=request.resamples,
        seed=request.seed,
        rows=rows,
        metrics=metrics,
        missing=request.missing,
        models=tuple(
            RankedModel(
                rank=int(found[index]),
                model=names[index],
                better_than=int(better[index].sum()),
                mean=float(means[index]),
                low=float(means[index] + estimates.low[index]),
                high=float(means[index] + estimates.high[index]),
            )
            for index in order.tolist()
        ),
    )


def _metric(request: RankingRequest, metrics: tuple[str, ...]) -> str:
    if request.metric in metrics:
        return request.metric
    if not request.metric and len(metrics) == 1:
        return metrics[0]
    named = f"{request.metric!r} has no values per row" if request.metric else "no metric was chosen"
    raise DataError(f"{named}: the test has them of {', '.join(metrics)}")


def _column(tables: Sequence[Table], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([table[name] for table in tables]) if len(tables) > 1 else tables[0][name]


def _values(tables: Sequence[Table], metric: str, model: str) -> Floats:
    if any(metric not in table for table in tables):
        raise DataError(f"{model} has no values per row of {metric!r}: test all models with the same code")
    return _column(tables, metric).astype(np.float64, copy=False)
