"""Ranking of the models of a test run: its request, its rows, and its text. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, cast

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.runs import EvaluatePlan
from cerebro.errors import DataError, NotFoundError
from cerebro.figures.measurements import tasks_by_model
from cerebro.state import ExperimentState, Run

CONFIDENCE, RESAMPLES = 0.95, 10_000
"""Default confidence and number of bootstrap resamples."""
Mode = Literal["max", "min", ""]
"""Direction of a metric; empty if it is unknown."""
_MAX_NAMES, _MAX_SENTENCES = 6, 3
"""Models that a sentence names, and sentences about ties."""


class RankingRequest(Contract):
    """Files and options of a ranking.

    Attributes:
        files: model -> its files of metrics per row on the shared volume, in the order of the partitions.
        metric: ranked metric; empty for the only one in the files.
        mode: "max" if higher is better, or "min"; empty if it is unknown.
        seed: seed of the resamples.
        missing: tested models without values, such as after a failure.
    """

    files: dict[str, tuple[str, ...]]
    metric: str = ""
    mode: Mode = ""
    confidence: float = Field(CONFIDENCE, gt=0.5, lt=1.0)
    resamples: int = Field(RESAMPLES, ge=100, le=1_000_000)
    seed: int = Field(0, ge=0)
    missing: tuple[str, ...] = ()


class RankedModel(Contract):
    """A model of a ranking.

    Attributes:
        rank: 1 more than the number of models that are significantly better, and below the rank of each of these.
        better_than: number of models that this one is significantly better than.
        mean: mean of the metric over all rows.
        low, high: bootstrap interval of the mean.
    """

    rank: int
    model: str
    better_than: int
    mean: float
    low: float
    high: float


class Ranking(Contract):
    """Models with ranks that the rows support.

    The rows cannot separate models that share a rank. Models of different ranks may also be too close to call. With the
    stated confidence, no model is wrongly called better than another one: over all pairs together.

    Attributes:
        metric: ranked metric.
        mode: "max" if higher is better, else "min".
        rows: number of rows that all models were tested on.
        metrics: all metrics with values per row.
        models: by rank, then by mean.
        missing: tested models without values, which have no rank.
    """

    metric: str
    mode: Literal["max", "min"]
    confidence: float
    resamples: int
    seed: int
    rows: int
    metrics: tuple[str, ...]
    models: tuple[RankedModel, ...]
    missing: tuple[str, ...] = ()

    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of two or more models that share a rank, best first."""
        by_rank = groupby(sorted(self.models, key=lambda each: each.rank), lambda each: each.rank)
        groups = (tuple(each.model for each in group) for _, group in by_rank)
        return tuple(group for group in groups if len(group) > 1)

    def sentences(self) -> tuple[str, ...]:
        """Describe the best model, ties such as "m03, m07 and m11 are tied (95 %)", and models without values."""
        with_confidence = f"({100 * self.confidence:g} %)"
        best = [each.model for each in self.models if each.rank == 1]
        found = [f"{best[0]} is better than all others {with_confidence}"] if len(best) == 1 else []
        if len(self.models) == 1:
            found = []
        ties = self.ties()
        found += [f"{_joined(group)} are tied {with_confidence}" for group in ties[:_MAX_SENTENCES]]
        if len(ties) > _MAX_SENTENCES:
            found.append(f"{len(ties) - _MAX_SENTENCES} more groups are tied")
        if self.missing:
            found.append(
                f"{_joined(self.missing)} {'have' if self.missing[1:] else 'has'} no values and no rank"
            )
        return tuple(found)

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table as text: the names of the columns, then one row for each model."""
        return [
            ("rank", "model", self.metric, f"{100 * self.confidence:g} % interval", "better than"),
            *(
                (
                    str(each.rank),
                    each.model,
                    f"{each.mean:.6g}",
                    f"{each.low:.6g} to {each.high:.6g}",
                    str(each.better_than),
                )
                for each in self.models
            ),
        ]

    def __repr__(self) -> str:
        """The same text as `str`, for notebooks."""
        return str(self)

    def __str__(self) -> str:
        """The table and the sentences as text."""
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join([*rows, "", *(f"{sentence}." for sentence in self.sentences())]).rstrip()


def require_mode(mode: str, metric: str) -> None:
    """Raise DataError if it is unknown whether higher values of a metric are better."""
    if not mode:
        raise DataError(f"it is unknown whether a higher {metric} is better: pass mode='max' or mode='min'")


def chosen_test(state: ExperimentState, run: str = "", *, fit: str = "") -> Run:
    """Return a planned test run, by default the newest with a ranking, else the newest.

    Args:
        run: id of the test run.
        fit: only tests of this fit run's models; empty for all.

    Raises:
        NotFoundError: there is no such run.
    """
    tests = planned_tests(state, fit)
    found = [each for each in tests if run in ("", each.id)]
    if not found:
        missing = f"no planned test run {run!r}" if run else "no planned test run yet"
        of = f" of models of {fit}" if fit else ""
        raise NotFoundError(f"the experiment has {missing}{of}: call run_test() with the models to compare")
    return next((each for each in reversed(found) if not each.is_open and _files(each)), found[-1])


def planned_tests(state: ExperimentState, fit: str = "") -> list[Run]:
    """Return the planned test runs, or only these of a fit run's models, oldest first."""
    return [
        run
        for run in state.runs.values()
        if run.request.kind == "test" and isinstance(run.plan, EvaluatePlan) and fit in ("", run.plan.fit)
    ]


def ranking_request(
    state: ExperimentState,
    run: Run,
    *,
    metric: str = "",
    mode: str = "",
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> RankingRequest:
    """Return the request for a ranking of a test run's models.

    Args:
        metric: default: the metric that ranks the models of the fit run.
        mode: "max", "min" or empty. Default: the fit run's, if the metric is the same.

    Raises:
        DataError: the run has not ended, no model has been tested completely with metrics per row, or an option is
            invalid.
    """
    assert isinstance(run.plan, EvaluatePlan)
    if not 0.5 < confidence < 1.0:
        raise DataError(
            f"confidence is {confidence:g}, expected a number above 0.5 and below 1, such as 0.95"
        )
    if mode not in ("max", "min", ""):
        raise DataError(f"mode is {mode!r}, expected 'max' if a higher value is better, or 'min'")
    if seed < 0:
        raise DataError(f"seed is {seed}, expected 0 or more")
    if run.is_open:
        raise DataError(f"{run.id} has not ended: compare its models when it has")
    files = _files(run)
    if not files:
        raise DataError(
            f"no model of {run.id} was tested completely: test the models again"
            if any(task.result is None for task in run.tasks.by_key.values())
            else f"no model of {run.id} has metrics per row: return cerebro.PerRow(values) from test(), or one value "
            "per row from validation_step(), and call run_test() again"
        )
    fit = state.runs[run.plan.fit].fit_request
    name = metric or fit.metric
    return RankingRequest(
        files=files,
        metric=name,
        mode=cast(Mode, mode or (fit.mode if name == fit.metric else "")),
        confidence=confidence,
        seed=seed,
        missing=tuple(model for model in run.plan.models if model not in files),
    )


def _files(run: Run) -> dict[str, tuple[str, ...]]:
    """Return the files of metrics per row of each completely tested model, in the order of the partitions."""
    files = {}
    for model, tasks in tasks_by_model(run).items():
        found = {task.key.partition or 0: task.result.output for task in tasks if task.result is not None}
        if len(found) == len(tasks) and all(found.values()):
            files[model] = tuple(found[partition] for partition in sorted(found))
    return files


def _joined(models: Sequence[str]) -> str:
    if len(models) == 1:
        return models[0]
    if len(models) > _MAX_NAMES:
        return f"{', '.join(models[: _MAX_NAMES - 1])} and {len(models) - _MAX_NAMES + 1} others"
    return f"{', '.join(models[:-1])} and {models[-1]}"
