"""Learning curves, downsampled for a screen: per epoch from the log, or live metrics during sub-epochs. Pure.

The tab, the read API and the figure call `curves`. Limits: up to 100 best models plus named ones, 5,000 points per
curve and about 100,000 points in total. Live metrics of compacted epochs are gone; such epochs have one mean each.
"""

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
from dispatcher.read_models.columns import Columns
from dispatcher.read_models.live_series import Reported
from dispatcher.read_models.read_model import ReadModel

Source = Literal["valid", "train", "live"]
"""Validation; means over the sub-epochs of an epoch; live metrics that user code reported."""

MAX_POINTS = 100_000
"""Maximum total number of points in one answer."""


class CurveQuery(Contract):
    """Selection of curves.

    Attributes:
        fit: id of the fit run, by default the newest.
        metric: name of the metric, by default the objective.
        split: `Source`. By default the split that ranks models over epochs, and live metrics over rows and time if
          they exist.
        models: ids of additional models, separated by commas. Shown regardless of `top`.
        filter: expression in the language of `dispatcher.models.query`; limits `top`.
        top: number of best models.
        points: maximum points per curve.
        start, stop: range of the axis, by default all.
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
    """Curves of `shown` models out of `total` in a fit run.

    Attributes:
        metrics: names of all metrics.
        is_ranked: True if the curves show the values that rank the models.
        mode: direction of the objective, ``min`` or ``max``.
        note: why curves are missing or reduced, or an empty text.
    """

    run: str
    metric: str
    is_objective: bool
    is_ranked: bool
    mode: str
    split: Source
    axis: Axis
    metrics: tuple[str, ...]
    curves: tuple[Curve, ...]
    shown: int
    total: int
    note: str


def curves(read_model: ReadModel, query: CurveQuery) -> CurvesView | None:
    """Return the selected curves; `None` if no fit run is planned.

    Raises:
        BadRequestError: the filter is invalid.
    """
    run = read_model.fit(query.fit)
    if run is None:
        return None
    table, request = read_model.table(run), run.fit_request
    columns, live = read_model.columns(run), read_model.live.metrics(run.id)
    metric = query.metric or request.metric
    source = _source(run, query, is_live=metric in live)
    rows = _select(table.rows(), query, columns, request.mode)
    if source == "live":
        found = [curve for row in rows if (curve := _live_curve(read_model, run, row, metric, query.axis))]
    else:
        selected = {row.id for row in rows}
        found = epoch_curves(run, metric, models=selected, split=source, axis=query.axis)
    note = "" if found else _empty_reason(run, metric, source)
    if source == "live" and found and any(run.models[curve.model].compacted_epochs for curve in found):
        note = "Older epochs show means per epoch. TensorBoard has their live metrics."
    points = min(query.points, max(FEWEST, MAX_POINTS // max(1, len(found))))
    return CurvesView(
        run=run.id,
        metric=metric,
        is_objective=metric == request.metric,
        is_ranked=metric == request.metric and source == shown_split(run),
        mode=request.mode,
        split=source,
        axis=query.axis,
        metrics=tuple(sorted({*columns.metrics, *live, request.metric})),
        curves=tuple(_downsampled(curve, points, query) for curve in _ranked(found, rows, request.mode)),
        shown=len(found),
        total=len(run.models),
        note=note,
    )


def _ranked(found: list[Curve], rows: list[ModelSummary], mode: str) -> list[Curve]:
    """Sort curves by the rank of their models, best first."""
    rank = {row.id: position for position, row in enumerate(ranked(rows, mode))}
    return sorted(found, key=lambda curve: rank[curve.model])


def _source(run: Run, query: CurveQuery, *, is_live: bool) -> Source:
    if query.split:
        return query.split
    return "live" if query.axis != "epoch" and is_live else shown_split(run)


def _select(rows: list[ModelSummary], query: CurveQuery, columns: Columns, mode: str) -> list[ModelSummary]:
    """Return the best models that match the filter and the named models, in the plan's order."""
    fitting = matching(rows, ModelQuery(filter=query.filter), columns)
    ids = {row.id for row in ranked(fitting, mode)[: query.top]} | {
        name.strip() for name in query.models.split(",")
    }
    return [row for row in rows if row.id in ids]


def _live_curve(read_model: ReadModel, run: Run, row: ModelSummary, metric: str, axis: Axis) -> Curve | None:
    positions = _Positions(run, run.models[row.id], axis)
    model = run.models[row.id]
    compacted = model.compacted_epochs
    line = read_model.live.line(run.id, row.id, metric)
    points = [(positions.position(point), point.value) for point in line if point.span.epoch > compacted]
    # Only the log knows where the sub-epochs of these epochs start.
    points += epoch_means(run, model, metric, axis, compacted)
    broke = read_model.live.broke(run.id, row.id, metric)
    if not points and broke is None:
        return None
    points.sort(key=lambda point: point[0])
    return Curve(
        model=row.id,
        index=row.index,
        x=tuple(x for x, _ in points),
        y=tuple(y for _, y in points),
        broke_at=positions.position(broke) if broke else None,
    )


class _Positions:
    """Positions of a model's reports on an axis."""

    def __init__(self, run: Run, model: Model, axis: Axis) -> None:
        self._axis, self._zero = axis, run.clock.first_start if axis == "time" else 0.0
        planned = run.plan.partitions if isinstance(run.plan, FitPlan) else {}
        rows = {partition: planned.get(partition, 0) for partition in model.partitions}
        self._per_epoch = sum(rows.values()) or 1
        self._rows_before: dict[tuple[int, int], int] = {}
        done = model.compacted_epochs * sum(rows.values())
        for sub_epoch in model.sub_epochs.recent:
            self._rows_before[sub_epoch.epoch, sub_epoch.partition] = done
            done += sum(rows.get(partition, 0) for partition in sub_epoch.partitions) or sub_epoch.rows
        self._done = done

    def position(self, point: Reported) -> float:
        """Return the position of a report. A running sub-epoch starts at the end of the committed ones."""
        if self._axis == "time":
            return point.time - self._zero
        span = point.span
        rows = self._rows_before.get((span.epoch, span.partition), self._done) + point.rows
        return float(rows) if self._axis == "row" else rows / self._per_epoch


def _downsampled(curve: Curve, points: int, query: CurveQuery) -> Curve:
    low = -math.inf if query.start is None else query.start
    high = math.inf if query.stop is None else query.stop
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


def _empty_reason(run: Run, metric: str, source: Source) -> str:
    if source == "live":
        return f"No model of {run.id} has reported the live metric {metric!r}: call dataloader.report in the spec."
    if not any(model.completed_epochs for model in run.models.values()):
        return f"{metric!r} appears when a model completes its first epoch."
    return (
        f"The selected models have no complete epoch with {metric!r}. Select other models or another split."
    )
