"""Learning curves, cut to what a screen shows: per epoch as the log has them, or as models report while they train."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.runs import FitPlan
from cerebro.figures.curves import Axis, Curve, epoch_curves, epoch_means, shown_split
from cerebro.figures.downsample import FEWEST, downsample
from cerebro.figures.models import ModelSummary, ranked
from cerebro.state import Model, Run
from dispatcher.models.query import ModelQuery, matching
from dispatcher.reading.columns import Columns
from dispatcher.reading.live_series import Reported
from dispatcher.reading.read_model import ReadModel

Source = Literal["valid", "train", "live"]
"""Validations; means over the sub-epochs of an epoch; values as user code reported them within sub-epochs."""

MAX_POINTS = 100_000
"""Of all curves of an answer."""


class CurveQuery(Contract):
    """Which curves.

    Attributes:
        fit: id of the fit run; the newest one if empty.
        metric: the objective if empty.
        split: `Source`; if empty, what models are ranked by over epochs, and live values over rows and time where
            there are such.
        models: ids, commas between: shown whatever `top` says.
        filter: see `dispatcher.models.query`; `top` counts models that fit.
        top: so many of the best are shown.
        points: at most so many of each curve.
        start, stop: of the axis; all of it by default.
    """

    fit: str = Field("", max_length=60)
    metric: str = Field("", max_length=200)
    split: Literal["", "valid", "train", "live"] = ""
    axis: Axis = "epoch"
    models: str = Field("", max_length=4000)
    filter: str = Field("", max_length=2000)
    top: int = Field(20, ge=0, le=100)
    points: int = Field(500, ge=FEWEST, le=5000)
    start: float | None = Field(None, allow_inf_nan=False)
    stop: float | None = Field(None, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class CurvesView:
    """Curves of a fit run: of `shown` models out of `total`. `metrics` are the names that there are.

    `mode` is which direction of the objective is better. `note` says why there is none, or what was left out; empty if
    nothing is to say.
    """

    run: str
    metric: str
    is_objective: bool
    mode: str
    split: Source
    axis: Axis
    metrics: tuple[str, ...]
    curves: tuple[Curve, ...]
    shown: int
    total: int
    note: str


def curves(read_model: ReadModel, asked: CurveQuery) -> CurvesView | None:
    """The curves that are asked for; `None` while there is no planned fit run.

    Raises:
        BadRequestError: the filter cannot be understood.
    """
    run = read_model.fit(asked.fit)
    if run is None:
        return None
    table, request = read_model.table(run), run.fit_request
    columns, live = table.columns(), read_model.live.metrics(run.id)
    metric = asked.metric or request.metric
    source = _source(run, asked, is_live=metric in live)
    rows = _chosen(table.rows(), asked, columns, request.mode)
    if source == "live":
        found = [curve for row in rows if (curve := _live_curve(read_model, run, row, metric, asked.axis))]
    else:
        wanted = {row.id for row in rows}
        found = epoch_curves(run, metric, models=wanted, split=source, axis=asked.axis)
    note = "" if found else _why_none(run, metric, source)
    if source == "live" and found and any(run.models[curve.model].archived_epochs for curve in found):
        note = "Of older epochs the means are drawn: what their sub-epochs reported is in TensorBoard."
    points = min(asked.points, max(FEWEST, MAX_POINTS // max(1, len(found))))
    return CurvesView(
        run=run.id,
        metric=metric,
        is_objective=metric == request.metric,
        mode=request.mode,
        split=source,
        axis=asked.axis,
        metrics=tuple(sorted({*columns.metrics, *live, request.metric})),
        curves=tuple(_cut(curve, points, asked) for curve in found),
        shown=len(found),
        total=len(run.models),
        note=note,
    )


def _source(run: Run, asked: CurveQuery, *, is_live: bool) -> Source:
    if asked.split:
        return asked.split
    return "live" if asked.axis != "epoch" and is_live else shown_split(run)


def _chosen(rows: list[ModelSummary], asked: CurveQuery, columns: Columns, mode: str) -> list[ModelSummary]:
    """The best that fit the filter, and those that are named, in the order of the plan."""
    fitting = matching(rows, ModelQuery(filter=asked.filter), columns)
    ids = {row.id for row in ranked(fitting, mode)[: asked.top]} | {
        name.strip() for name in asked.models.split(",")
    }
    return [row for row in rows if row.id in ids]


def _live_curve(read_model: ReadModel, run: Run, row: ModelSummary, metric: str, axis: Axis) -> Curve | None:
    place = _Places(run, run.models[row.id], axis)
    model = run.models[row.id]
    archived = model.archived_epochs
    line = read_model.live.line(run.id, row.id, metric)
    points = [(place.of(point), point.value) for point in line if point.span.epoch > archived]
    # Where their sub-epochs lie in an epoch, the log alone has.
    points += epoch_means(run, model, metric, axis, archived)
    broke = read_model.live.broke(run.id, row.id, metric)
    if not points and broke is None:
        return None
    points.sort(key=lambda point: point[0])
    return Curve(
        model=row.id,
        index=row.index,
        x=tuple(x for x, _ in points),
        y=tuple(y for _, y in points),
        broke_at=place.of(broke) if broke else None,
    )


class _Places:
    """Where a model's reports lie on an axis."""

    def __init__(self, run: Run, model: Model, axis: Axis) -> None:
        self._axis, self._zero = axis, run.origin if axis == "time" else 0.0
        rows = run.plan.partitions if isinstance(run.plan, FitPlan) else {}
        self._per_epoch = sum(rows.values()) or 1
        self._before: dict[tuple[int, int], int] = {}
        done = model.archived_epochs * sum(rows.values())
        for visit in model.visits.kept:
            self._before[visit.epoch, visit.partition] = done
            done += sum(rows.get(partition, 0) for partition in visit.partitions) or visit.rows
        self._done = done

    def of(self, point: Reported) -> float:
        """A sub-epoch that is not committed yet begins where the committed ones end."""
        if self._axis == "time":
            return point.time - self._zero
        span = point.span
        rows = self._before.get((span.epoch, span.partition), self._done) + point.rows
        return float(rows) if self._axis == "row" else rows / self._per_epoch


def _cut(curve: Curve, points: int, asked: CurveQuery) -> Curve:
    low = -math.inf if asked.start is None else asked.start
    high = math.inf if asked.stop is None else asked.stop
    inside = [index for index, x in enumerate(curve.x) if low <= x <= high]
    if len(inside) == len(curve.x) <= points:
        return curve
    best_x = curve.x[curve.best_at] if curve.best_at is not None else None
    x, y = downsample([curve.x[i] for i in inside], [curve.y[i] for i in inside], points)
    return replace(
        curve,
        x=x,
        y=y,
        best_at=x.index(best_x) if best_x in x else None,
        branch=curve.branch if x[:1] == curve.x[:1] else None,
    )


def _why_none(run: Run, metric: str, source: Source) -> str:
    if source == "live":
        return f"No model of {run.id} has reported {metric!r} within a sub-epoch."
    if not any(model.completed_epochs for model in run.models.values()):
        return f"{metric!r} is drawn once a model has completed its first epoch."
    return f"No epoch with {metric!r} is complete in what is asked for."
