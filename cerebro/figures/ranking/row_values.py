"""Ranking of models from the files of metrics per row, one model at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from cerebro.errors import DataError
from cerebro.figures.ranking.results import RankedModel, Ranking, RankingRequest
from cerebro.figures.ranking.statistics import MIN_ROWS, Floats, RowGroups, bootstrap, is_better, ranks


def rank_models(request: RankingRequest, path_of: Callable[[str], Path]) -> Ranking:
    """Read the values per row of all models and rank the models.

    Args:
        path_of: returns the path of a file of the shared volume.

    Raises:
        DataError: the metric has no values per row or no known direction, models were tested on different rows, there
            are too few rows, or a file cannot be read.
    """
    first = next(iter(request.files.values()))
    metrics = tuple(name for name in _read(path_of(first[0])).column_names if name != "id")
    metric = _metric(request, metrics)
    if not request.mode:
        raise DataError(f"it is unknown whether a higher {metric} is better: pass mode='max' or mode='min'")
    ids: pa.Array | None = None
    groups: RowGroups | None = None
    means, residuals = [], []
    for model, files in request.files.items():
        tables = [_read(path_of(name)) for name in files]
        found, values = _column(tables, "id"), _values(tables, metric, model)
        if ids is None or groups is None:
            ids, groups = found, RowGroups(len(found), request.seed)
            if len(found) < MIN_ROWS:
                raise DataError(
                    f"the models were tested on {len(found)} rows: a ranking needs {MIN_ROWS} or more"
                )
        elif not found.equals(ids):
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
    found = ranks(scores, is_better(scores, estimates, request.confidence))
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
        models=tuple(
            RankedModel(
                rank=int(found[index]),
                model=names[index],
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


def _read(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError) as cause:
        raise DataError(f"{path} cannot be read: {cause}. Test the models again") from cause


def _column(tables: Sequence[pa.Table], name: str) -> pa.Array:
    chunks = [chunk for table in tables for chunk in table.column(name).chunks]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _values(tables: Sequence[pa.Table], metric: str, model: str) -> Floats:
    if any(metric not in table.column_names for table in tables):
        raise DataError(f"{model} has no values per row of {metric!r}: test all models with the same code")
    return np.asarray(_column(tables, metric).to_numpy(zero_copy_only=False), dtype=np.float64)
