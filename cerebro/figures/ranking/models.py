"""Ranking of models from the files of metrics per row, one model at a time in memory."""

from __future__ import annotations

import numpy as np

from cerebro.errors import DataError
from cerebro.figures.ranking.results import RankedModel, Ranking, RankingRequest, require_mode
from cerebro.figures.ranking.row_values import Floats, OpenFile, RowValues
from cerebro.figures.ranking.statistics import (
    MAX_MODELS,
    MIN_ROWS,
    RowGroups,
    better_models,
    bootstrap,
    ranks,
)


def rank_models(request: RankingRequest, open_file: OpenFile) -> Ranking:
    """Read the values per row of all models and rank the models.

    Args:
        open_file: opens a file of the shared volume.

    Raises:
        DataError: the metric has no values per row or no known direction, models were tested on different rows, there
            are too few rows or too many models, or a file is damaged.
        OSError: the volume cannot be read.
    """
    if len(request.files) > MAX_MODELS:
        raise DataError(
            f"the test has {len(request.files):,} models: rank up to {MAX_MODELS:,} in one test run, such as the best"
        )
    reader = RowValues(request.files, request.metric, open_file)
    require_mode(request.mode, reader.metric)
    groups: RowGroups | None = None
    means, residuals = [], []
    for each in reader.of():
        if groups is None:
            groups = RowGroups(len(each.values), request.seed)
            if len(each.values) < MIN_ROWS:
                raise DataError(
                    f"the models were tested on {len(each.values)} rows: a ranking needs {MIN_ROWS} or more"
                )
        mean, sums = groups.residuals(each.values)
        means.append(mean)
        residuals.append(sums)
    assert groups is not None
    request = request.model_copy(update={"metric": reader.metric})
    return _ranked(request, reader.metrics, np.array(means), np.stack(residuals, axis=1), groups.rows)


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
