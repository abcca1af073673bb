"""Learning curves: metrics over epochs, rows or time, and their figure with a line for each model. Pure.

`cerebro.client.reporting.drawings` and `dispatcher.curves` call it. `epoch_curves` makes a point per completed epoch;
`dispatcher.curves` also makes curves of live metrics. At most 100 models are drawn, the caller's first ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.failures import FailureKind
from cerebro.figures.frame import (
    Cell,
    Duration,
    Figure,
    Table,
    cut,
    duration,
    empty,
    figure,
    lines,
    number,
    text,
)
from cerebro.figures.frame import axis as axis_of
from cerebro.figures.palette import HUES, THEME_COLORS, Theme, ThemeColors, colour, dash, faint
from cerebro.state import Model, Run

Axis = Literal["epoch", "row", "time"]
"""Unit of the x axis: epochs from 1, rows trained, or seconds since the run's first sub-epoch."""

CurveSplit = Literal["train", "valid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one model, in the order of `x`; `x` and `y` have the same length.

    Attributes:
        model: id of the model.
        index: its position in the run's plan, from 0.
        x: end of each epoch, in the unit of `Axis`.
        y: finite values.
        broke_at: x of the first non-finite value, or `None`.
        best_at: index into `x` of the best epoch, for curves over epochs.
        parent, branch: model whose curve this one starts from, and the epoch there; empty and `None` for a model that
            started with new weights.
    """

    model: str
    index: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    broke_at: float | None = None
    best_at: int | None = None
    parent: str = ""
    branch: int | None = None

    @property
    def own_values(self) -> tuple[float, ...]:
        """Values without the parent's point."""
        return self.y if self.branch is None else self.y[1:]


def shown_split(run: Run) -> CurveSplit:
    """Return the split whose metric ranks the models."""
    return "valid" if run.is_validated else "train"


def epoch_curves(
    run: Run,
    metric: str,
    *,
    models: Collection[str] | None = None,
    split: CurveSplit | Literal[""] = "",
    axis: Axis = "epoch",
) -> list[Curve]:
    """Return a curve for each model, with a point per epoch: training metrics, or validation.

    Args:
        run: a fit run; other runs have no curves.
        metric: a name that the user's functions return.
        models: ids of models; default: all.
        split: default: the split that ranks models.
        axis: an epoch is at the end of its last sub-epoch.

    Returns:
        Curves in the order of the models. Models without a value are omitted, unless their metric broke. The curve of
        a warm clone starts at its parent's last shared point.
    """
    chosen = [
        (index, model)
        for index, model in enumerate(run.models.values())
        if models is None or model.id in models
    ]
    values = split or shown_split(run)
    curves = (_curve(run, model, index, metric=metric, split=values, axis=axis) for index, model in chosen)
    return [curve for curve in curves if curve.x or curve.broke_at is not None]


def _curve(run: Run, model: Model, index: int, *, metric: str, split: CurveSplit, axis: Axis) -> Curve:
    is_valid = split == "valid"
    since = model.inherited_epochs
    known = model.scores(metric, validated=is_valid)
    own_values = {epoch: value for epoch, value in known.items() if epoch >= since}
    epoch_values = (
        (
            epoch,
            (model.validation.metrics.get(epoch, {}) if is_valid else model.training_metrics(epoch)).get(
                metric
            ),
        )
        for epoch in range(since + 1, model.completed_epochs + 1)
    )
    broke = next(
        (epoch for epoch, value in epoch_values if value is not None and not math.isfinite(value)), None
    )
    if (
        broke is None
        and model.failures.final is not None
        and model.failures.final.kind is FailureKind.NON_FINITE
    ):
        broke = model.epoch  # Its sub-epoch was not committed, so no epoch has the value.
    best = model.best_epoch(run.fit_request.metric, run.fit_request.mode, validated=run.is_validated)
    return Curve(
        model=model.id,
        index=index,
        x=tuple(_position(run, model, epoch, axis) for epoch in own_values),
        y=tuple(own_values.values()),
        broke_at=None if broke is None else _position(run, model, broke, axis),
        best_at=list(own_values).index(best) if best in own_values else None,
        parent=model.lineage.parent if model.lineage.sub_epochs else "",
        branch=since if since and since in own_values else None,
    )


def epoch_means(run: Run, model: Model, metric: str, axis: Axis, until: int) -> list[tuple[float, float]]:
    """Return (end of epoch, mean of its sub-epochs) of a model's own epochs up to `until`, finite values only."""
    points = (
        (_position(run, model, epoch, axis), model.training_metrics(epoch).get(metric, math.nan))
        for epoch in range(model.inherited_epochs + 1, until + 1)
    )
    return [(position, value) for position, value in points if math.isfinite(value)]


def _position(run: Run, model: Model, epoch: int, axis: Axis) -> float:
    """Return the end of an epoch on the axis; for the current epoch, the end of its newest sub-epoch."""
    if axis == "epoch":
        return float(epoch)
    sub_epochs = model.sub_epochs_until(epoch)
    if axis == "time":
        return model.sub_epochs[sub_epochs - 1].ended - run.clock.first_start if sub_epochs else 0.0
    rows = run.plan.partitions if isinstance(run.plan, FitPlan) else {}
    compacted = min(epoch, model.compacted_epochs)
    return float(
        model.summaries.rows_until(compacted)
        + sum(
            v.rows or sum(rows.get(p, 0) for p in v.partitions)
            for v in model.sub_epochs[model.sub_epochs_until(compacted) : sub_epochs]
        )
    )


# --- drawing ------------------------------------------------------------------------------------

MAX_LINES = 100
"""Maximum number of lines: more cannot be distinguished, nor drawn fast."""

_NAMED = 20
"""Maximum number of lines for a legend."""

_DOTTED = 40
"""Maximum number of points of a line with a dot at each."""

_FEW_EPOCHS = 20
"""Maximum number of epochs with a tick each."""


def curves(  # noqa: PLR0913 - a reader's choices, by keyword
    curves: Sequence[Curve],
    *,
    metric: str,
    mode: Literal["min", "max"],
    axis: Axis = "epoch",
    split: str = "",
    is_log: bool = False,
    smoothing: float = 0.0,
    total: int = 0,
    is_ranked: bool = True,
    theme: Theme = "light",
) -> Figure:
    """Draw `metric` over epochs, rows or time.

    The best model's line is thick and labelled. A diamond marks a model's best epoch, a cross the first non-finite
    value, a ring the start of a warm clone.

    Args:
        curves: most important first; of more than `MAX_LINES` the rest is not drawn, as the title says.
        mode: direction of the metric, for the best value in the data table.
        split: ``train`` or ``valid``, for the title.
        is_log: True for a logarithmic y axis, which omits values that are not positive.
        smoothing: weight of past values, from 0 (none) to below 1. The original line stays, faint.
        total: number of models, if `curves` has fewer.
        is_ranked: True if `metric` ranks the models, in direction `mode`. Only then a best line is highlighted.

    Raises:
        ValueError: `smoothing` is out of range.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing is {smoothing}, expected 0 (none) to below 1")
    shown = curves[:MAX_LINES]
    title = _title(metric, split, shown, max(total, len(curves)))
    if not shown:
        return empty(
            "curves",
            f"no value of {metric}: a model's first one comes at the end of its first epoch",
            theme=theme,
            title=title,
        )
    shown = restyled(shown)
    colors = THEME_COLORS[theme]
    scale = duration(_reach(shown)) if axis == "time" else Duration(1.0, "")
    best = _best(shown, mode) if is_ranked and len(shown) > 1 else None
    traces = list(_lines(shown, axis, scale, smoothing, theme, best=best))
    traces += _label(best, scale, smoothing, theme)
    traces += _diamonds(shown, metric, scale, axis, theme)
    traces += _branches(shown, scale, theme)
    traces += _crosses(shown, metric, scale, theme, is_log=is_log)
    return figure(
        "curves",
        traces,
        theme=theme,
        title=title,
        description=_description(shown, metric, mode, max(total, len(curves))),
        table=_table(shown, mode),
        layout={
            "xaxis": _x_axis(shown, axis, scale, colors),
            "yaxis": axis_of(colors, metric, type="log" if is_log else "linear", hoverformat=".6~g"),
            "showlegend": len(shown) <= _NAMED,
        },
    )


def restyled(curves: Sequence[Curve]) -> Sequence[Curve]:
    """Renumber curves in the plan's order if two of them would have the same colour.

    `Curve.index` decides the colour. Few models of a large plan would otherwise share colours by chance.
    """
    if len({curve.index % HUES for curve in curves}) == len(curves):
        return curves
    order = sorted(range(len(curves)), key=lambda position: curves[position].index)
    index_of = {position: index for index, position in enumerate(order)}
    return [replace(curve, index=index_of[position]) for position, curve in enumerate(curves)]


def _best(shown: Sequence[Curve], mode: str) -> Curve | None:
    """Return the curve with the best own value, the first of equal ones."""
    sign = -1 if mode == "max" else 1
    known = [curve for curve in shown if curve.own_values]
    return min(known, key=lambda curve: (min(sign * y for y in curve.own_values), curve.index), default=None)


def _label(best: Curve | None, scale: Duration, smoothing: float, theme: Theme) -> list[dict[str, Any]]:
    """Write the name of the best model at the end of its line."""
    if best is None:
        return []
    label = {
        "type": "scatter",
        "mode": "text",
        "x": [scale.of(best.x[-1])],
        "y": [smoothed(best.y, smoothing)[-1] if smoothing else best.y[-1]],
        "text": [text(best.model)],
        "textposition": "top left",
        "textfont": {"color": THEME_COLORS[theme].ink, "size": 14},
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
        "meta": {"role": "label"},
    }
    return [label]


def smoothed(y: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average, corrected for its start at zero (Kingma and Ba, ICLR 2015, section 3)."""
    average, smoothed_values = 0.0, []
    for count, value in enumerate(y, start=1):
        average = weight * average + (1 - weight) * value
        smoothed_values.append(average / (1 - weight**count))
    return smoothed_values


def _lines(
    shown: Sequence[Curve], axis: Axis, scale: Duration, smoothing: float, theme: Theme, *, best: Curve | None
) -> Iterator[dict[str, Any]]:
    where = {"epoch": "epoch %{x:d}", "row": "%{x:,d} rows", "time": f"%{{x:.4~g}} {scale.name}"}[axis]
    # Draw the most important line last, on top; the legend has it first.
    for rank, curve in reversed(list(enumerate(shown))):
        tint, style = colour(curve.index, theme), dash(curve.index)
        x = [scale.of(position) for position in curve.x]
        common = {
            "type": "scatter",
            "x": x,
            "mode": "lines+markers" if len(x) <= _DOTTED else "lines",
            "marker": {"size": 4},
            "name": text(curve.model),
            "legendgroup": text(curve.model),
            "legendrank": rank,
            "meta": {"model": curve.model},
        }
        if smoothing:
            line = {"color": faint(tint, 0.35), "dash": style, "width": 1}
            yield common | {
                "y": list(curve.y), "mode": "lines", "line": line, "showlegend": False, "hoverinfo": "skip",
            }  # fmt: skip
        yield common | {
            "y": smoothed(curve.y, smoothing) if smoothing else list(curve.y),
            "line": {"color": tint, "dash": style, "width": 3.5 if curve is best else 1.75},
            "hovertemplate": f"{text(curve.model)}: %{{y:.6~g}}<br>{where}<extra></extra>",
        }


def _diamonds(
    shown: Sequence[Curve], metric: str, scale: Duration, axis: Axis, theme: Theme
) -> list[dict[str, Any]]:
    best = [(curve, curve.x[at], curve.y[at]) for curve in shown if (at := curve.best_at) is not None]
    where = [f"epoch {x:g}" if axis == "epoch" else "its best epoch" for _, x, _ in best]
    return _marks(
        best,
        scale,
        name="best epoch",
        showlegend=False,
        meta={"role": "best"},
        marker={
            "symbol": "diamond",
            "size": 9,
            "color": [colour(curve.index, theme) for curve, _, _ in best],
            "line": {"color": THEME_COLORS[theme].ink, "width": 1},
        },
        hovertext=[
            lines(f"{curve.model}, best at {position}", f"{metric} {number(y)}")
            for (curve, _, y), position in zip(best, where, strict=True)
        ],
    )


def _branches(shown: Sequence[Curve], scale: Duration, theme: Theme) -> list[dict[str, Any]]:
    """Draw rings at the starts of warm clones."""
    branches = [(curve, curve.x[0], curve.y[0]) for curve in shown if curve.branch is not None and curve.x]
    return _marks(
        branches,
        scale,
        name="warm clone of another model",
        showlegend=False,
        meta={"role": "branch"},
        marker={
            "symbol": "circle-open",
            "size": 10,
            "color": [colour(curve.index, theme) for curve, _, _ in branches],
            "line": {"width": 2},
        },
        hovertext=[
            lines(f"{curve.model} from {curve.parent} at epoch {curve.branch}") for curve, _, _ in branches
        ],
    )


def _crosses(
    shown: Sequence[Curve], metric: str, scale: Duration, theme: Theme, *, is_log: bool
) -> list[dict[str, Any]]:
    # A logarithmic axis omits values that are not positive.
    values = [y for curve in shown for y in curve.y if y > 0 or not is_log]
    baseline = _baseline(values, is_log=is_log)
    # A non-finite value has no height: put its cross on the model's last finite value, or below all curves.
    broken = [
        (curve, at, _last_finite(curve, at, baseline, is_log=is_log))
        for curve in shown
        if (at := curve.broke_at) is not None
    ]
    return _marks(
        broken,
        scale,
        name="not finite",
        showlegend=True,
        meta={"role": "broke"},
        marker={
            "symbol": "x",
            "size": 10,
            "color": [colour(curve.index, theme) for curve, _, _ in broken],
            "line": {"color": THEME_COLORS[theme].ground, "width": 1},
        },
        hovertext=[lines(f"{curve.model}: {metric} is not finite from here") for curve, _, _ in broken],
    )


def _marks(
    points: Sequence[tuple[Curve, float, float]], scale: Duration, **more: Any
) -> list[dict[str, Any]]:
    """Return a trace of marks at (x, y), or none."""
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [scale.of(x) for _, x, _ in points],
        "y": [y for _, _, y in points],
        "hoverinfo": "text",
        "customdata": [[curve.model, x] for curve, x, _ in points],
    }
    return [trace | more] if points else []


def _baseline(values: Sequence[float], *, is_log: bool) -> float:
    """Return a height below all values, by a twentieth of their range."""
    if not values:
        return 1.0
    low, high = min(values), max(values)
    if is_log:
        return low / (high / low) ** 0.05 if high > low else low / 2
    return low - ((high - low) / 20 or abs(low) / 20 or 1.0)


def _last_finite(curve: Curve, at: float, otherwise: float, *, is_log: bool) -> float:
    points = zip(reversed(curve.x), reversed(curve.y), strict=True)
    return next((y for x, y in points if x <= at and (y > 0 or not is_log)), otherwise)


def _x_axis(shown: Sequence[Curve], axis: Axis, scale: Duration, colors: ThemeColors) -> dict[str, Any]:
    if axis == "row":
        return axis_of(colors, "rows trained", tickformat="~s", hoverformat=",d", rangemode="tozero")
    if axis == "time":
        return axis_of(
            colors, f"time since the first sub-epoch, {scale.name}", hoverformat=".4~g", rangemode="tozero"
        )
    few = {"dtick": 1} if _reach(shown) <= _FEW_EPOCHS else {"tickformat": ",d"}
    return axis_of(colors, "epoch", hoverformat="d", **few)


def _reach(shown: Sequence[Curve]) -> float:
    return max(
        [position for curve in shown for position in (*curve.x[-1:], curve.broke_at or 0.0)], default=0.0
    )


def _title(metric: str, split: str, shown: Sequence[Curve], total: int) -> str:
    of = {"valid": " (validation)", "train": " (training)"}.get(split, "")
    if len(shown) == 1:
        return f"{metric}{of} of {shown[0].model}"
    return f"{metric}{of}" + (f": {len(shown):,} of {total:,} models" if shown and len(shown) < total else "")


def _description(shown: Sequence[Curve], metric: str, mode: str, total: int) -> str:
    summary = f"Learning curves of {metric}, {len(shown):,} of {total:,} models."
    sign = -1 if mode == "max" else 1
    ranked = [(min(sign * y for y in c.own_values), c.index, c.model) for c in shown if c.own_values]
    if ranked:
        signed, _, model = min(ranked)  # Of equal values the first, as everywhere.
        value = sign * signed
        summary += f" The best value is {number(value)}, of {model}."
    joined = sum(curve.branch is not None for curve in shown)
    summary += f" Rings mark {joined} warm clones of other models." if joined else ""
    broken = sum(curve.broke_at is not None for curve in shown)
    return summary + (f" Of {broken} the values were not finite at the end." if broken else "")


def _row(curve: Curve, mode: str) -> tuple[Cell, ...]:
    if not curve.own_values:
        return (curve.model, 0, None, None, None, curve.broke_at)
    best = max(curve.own_values) if mode == "max" else min(curve.own_values)
    return (
        curve.model,
        len(curve.own_values),
        curve.own_values[0],
        curve.own_values[-1],
        best,
        curve.broke_at,
    )


def _table(shown: Sequence[Curve], mode: str) -> Table:
    """Return the table of the models' own points; with a column for parents if there are any."""
    columns = ("model", "points", "first", "last", f"best ({mode})", "broke at")
    rows = [_row(curve, mode) for curve in shown]
    if not any(curve.parent for curve in shown):
        return cut(rows, columns)
    origins = (f"{c.parent} at epoch {c.branch}" if c.branch is not None else c.parent or None for c in shown)
    return cut([(*row, origin) for row, origin in zip(rows, origins, strict=True)], (*columns, "from"))
