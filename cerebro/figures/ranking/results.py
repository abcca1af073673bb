"""Ranking of the models of a test run: its request, its rows, and its text. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.runs import EvaluatePlan
from cerebro.errors import DataError, NotFoundError
from cerebro.figures.measurements import tested
from cerebro.state import ExperimentState, Run

CONFIDENCE, RESAMPLES = 0.95, 10_000
"""Default confidence and number of bootstrap resamples."""
_MAX_NAMES, _MAX_SENTENCES = 6, 3
"""Models that a sentence names, and sentences about ties."""


class RankingRequest(Contract):
    """Files and options of a ranking.

    Attributes:
        files: model -> its files of metrics per row on the shared volume, in the order of the partitions.
        metric: ranked metric; empty for the only one in the files.
        mode: "max" if higher is better, or "min"; empty if it is unknown.
        seed: seed of the resamples.
    """

    files: dict[str, tuple[str, ...]]
    metric: str = ""
    mode: Literal["max", "min", ""] = ""
    confidence: float = Field(CONFIDENCE, gt=0.5, lt=1.0)
    resamples: int = Field(RESAMPLES, ge=100, le=1_000_000)
    seed: int = Field(0, ge=0)


class RankedModel(Contract):
    """A model of a ranking.

    Attributes:
        rank: 1 more than the number of models that are significantly better; models that tie share it.
        mean: mean of the metric over all rows.
        low, high: bootstrap interval of the mean.
    """

    rank: int
    model: str
    mean: float
    low: float
    high: float


class Ranking(Contract):
    """Models in the order of their means, with ranks that the rows support.

    With the stated confidence, no model is wrongly called better than another one: over all pairs together.

    Attributes:
        metric: ranked metric.
        mode: "max" if higher is better, else "min".
        rows: number of rows that all models were tested on.
        metrics: all metrics with values per row.
        models: by rank, then by mean.
    """

    metric: str
    mode: Literal["max", "min"]
    confidence: float
    resamples: int
    seed: int
    rows: int
    metrics: tuple[str, ...]
    models: tuple[RankedModel, ...]

    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of two or more models that share a rank, best first."""
        by_rank = groupby(sorted(self.models, key=lambda each: each.rank), lambda each: each.rank)
        groups = (tuple(each.model for each in group) for _, group in by_rank)
        return tuple(group for group in groups if len(group) > 1)

    def sentences(self) -> tuple[str, ...]:
        """Describe the best model and the ties, such as "m03, m07 and m11 are tied (95 %)"."""
        with_confidence = f"({100 * self.confidence:g} %)"
        best = [each.model for each in self.models if each.rank == 1]
        found = [f"{best[0]} is better than all others {with_confidence}"] if len(best) == 1 else []
        if len(self.models) == 1:
            found = []
        ties = self.ties()
        found += [f"{_joined(group)} are tied {with_confidence}" for group in ties[:_MAX_SENTENCES]]
        if len(ties) > _MAX_SENTENCES:
            found.append(f"{len(ties) - _MAX_SENTENCES} more groups are tied")
        return tuple(found)

    def __repr__(self) -> str:
        """The same text as `str`, for notebooks."""
        return str(self)

    def __str__(self) -> str:
        """The table and the sentences as text."""
        interval = f"{100 * self.confidence:g} % interval"
        cells = [("rank", "model", self.metric, interval)]
        cells += [
            (str(each.rank), each.model, f"{each.mean:.6g}", f"{each.low:.6g} to {each.high:.6g}")
            for each in self.models
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join([*rows, "", *(f"{sentence}." for sentence in self.sentences())]).rstrip()


def chosen_test(state: ExperimentState, run: str | None = None) -> Run:
    """Return a planned test run, by default the newest.

    Raises:
        NotFoundError: the experiment has no such run.
    """
    tests = [
        each
        for each in state.runs.values()
        if each.request.kind == "test" and each.plan is not None and run in (None, "", each.id)
    ]
    if not tests:
        missing = f"no planned test run {run!r}" if run else "no planned test run yet"
        raise NotFoundError(f"the experiment has {missing}: call run_test() with the models to rank")
    return tests[-1]


def ranking_request(
    state: ExperimentState,
    run: Run,
    *,
    metric: str = "",
    mode: Literal["max", "min", ""] = "",
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> RankingRequest:
    """Return the request for a ranking of a test run's models.

    Args:
        metric: default: the metric that ranks the models of the fit run.
        mode: default: the fit run's, if the metric is the same.

    Raises:
        DataError: no model has been tested completely with metrics per row, or `confidence` is out of range.
    """
    assert isinstance(run.plan, EvaluatePlan)
    if not 0.5 < confidence < 1.0:
        raise DataError(
            f"confidence is {confidence:g}, expected a number above 0.5 and below 1, such as 0.95"
        )
    files: dict[str, list[tuple[int, str]]] = {}
    is_complete = {each.model: each.done == each.parts for each in tested(run)}
    for task in run.tasks.by_key.values():
        model = task.key.model or ""
        if task.result is not None and task.result.output and is_complete[model]:
            files.setdefault(model, []).append((task.key.partition or 0, task.result.output))
    if not files:
        raise DataError(
            f"no model of {run.id} has metrics per row: return cerebro.PerRow(values) from test(), or one value per "
            "row from validation_step(), and call run_test() again"
        )
    fit = state.runs[run.plan.fit].fit_request
    name = metric or fit.metric
    return RankingRequest(
        files={model: tuple(file for _, file in sorted(found)) for model, found in files.items()},
        metric=name,
        mode=mode or (fit.mode if name == fit.metric else ""),
        confidence=confidence,
        seed=seed,
    )


def _joined(models: Sequence[str]) -> str:
    if len(models) > _MAX_NAMES:
        return f"{', '.join(models[: _MAX_NAMES - 1])} and {len(models) - _MAX_NAMES + 1} others"
    return f"{', '.join(models[:-1])} and {models[-1]}"
