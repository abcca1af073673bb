"""Parallel coordinates: a line for each model across the axes of hyperparameters and the metric.

`cerebro.client.reporting.drawings` and `dispatcher.analysis.figures` call `parallel`, which draws at most 1,000 lines.
Lines are SVG on axes from 0 to 1. Plotly's trace of that name needs WebGL and compiles functions from text, which the
page's security policy forbids. The page's script selects lines by brushing: it needs the axes (``layout.meta.axes``)
and the model of each point (``customdata``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cerebro.figures.frame import Cell, Figure, annotation, cut, empty, figure, lines, number
from cerebro.figures.hyperparams import values_of, varying, word
from cerebro.figures.models import ModelSummary
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, faint, shade
from cerebro.figures.parallel_axes import ParallelAxis, hyperparameter_axis, objective_axis

MAX_LINES = 1000
"""Maximum number of lines: the best models and a sample of the others."""

_SAMPLED = 200
"""Size of the sample, at even distances by rank."""

_FAILED = 100
"""Maximum number of lines of failed models if scored models take the rest."""

_SHADES = 6


def parallel(
    rows: Sequence[ModelSummary],
    *,
    metric: str,
    mode: Literal["min", "max"],
    names: Sequence[str] = (),
    is_log: bool = False,
    total: int = 0,
    theme: Theme = "light",
) -> Figure:
    """Draw models as lines; the best have the strongest colour and end on top.

    Lines of failed models are dashed and end before the metric. Models without a value yet are omitted.

    Args:
        rows: models. Of more than `MAX_LINES`, the best are drawn, a sample of the others, and the first failed ones.
        names: hyperparameters from left to right; default: the varying ones.
        is_log: True for a logarithmic axis of the metric, if all its values are positive.
        total: number of models, if `rows` has fewer.
    """
    title = f"Hyperparameters and {metric}"
    scored = sorted((row for row in rows if row.best is not None), key=lambda row: _rank(row, mode))
    failed = [row for row in rows if row.best is None and row.failure is not None]
    max_lines = MAX_LINES - min(len(failed), _FAILED)
    drawn = _select(scored, max_lines)
    if not drawn:
        return empty("parallel", f"no model has a value of {metric} yet", theme=theme, title=title)
    drawn_failed = failed[: MAX_LINES - len(drawn)]
    shown = drawn + drawn_failed
    chosen = tuple(names) or varying(rows)
    axes = [
        hyperparameter_axis(name, values_of(name, shown), all_values=values_of(name, rows)) for name in chosen
    ]
    objective = objective_axis(
        metric, [row.best for row in drawn if row.best is not None], mode, is_log=is_log
    )
    colors = THEME_COLORS[theme]
    num_models = max(total, len(rows))
    if len(shown) < num_models:
        title += f": {len(shown):,} of {num_models:,} models" + (
            f", the best and every {_step(scored, max_lines)}th of the others"
            if len(drawn) < len(scored)
            else ""
        )
    traces = [*_scored_lines(drawn, axes, objective, theme), *_failed_lines(drawn_failed, axes, colors)]
    return figure(
        "parallel",
        traces,
        theme=theme,
        title=title,
        description=_description(drawn, failed, axes, objective),
        table=cut((_row(row, chosen) for row in shown), ("model", *chosen, metric)),
        layout=_layout([*axes, objective], colors),
        meta={"axes": [axis.describe() for axis in (*axes, objective)]},
    )


# --- selection of models --------------------------------------------------------------------------


def _rank(row: ModelSummary, mode: str) -> float:
    assert row.best is not None
    return -row.best if mode == "max" else row.best


def _step(scored: Sequence[ModelSummary], max_lines: int) -> int:
    return math.ceil((len(scored) - (max_lines - _SAMPLED)) / _SAMPLED)


def _select(scored: Sequence[ModelSummary], max_lines: int) -> list[ModelSummary]:
    if len(scored) <= max_lines:
        return list(scored)
    best = max_lines - _SAMPLED
    return [*scored[:best], *scored[best :: _step(scored, max_lines)]]


# --- marks ----------------------------------------------------------------------------------------


def _scored_lines(
    rows: Sequence[ModelSummary], axes: Sequence[ParallelAxis], objective: ParallelAxis, theme: Theme
) -> list[dict[str, Any]]:
    """Return one trace for each shade, worst first, so that the best are on top; one per model would be slow."""
    groups: dict[int, list[ModelSummary]] = {}
    for row in rows:
        groups.setdefault(min(int(objective.position(row.best) * _SHADES), _SHADES - 1), []).append(row)
    traces = []
    for group in sorted(groups):
        best_first = groups[group]
        line = {"color": shade((group + 0.5) / _SHADES, theme), "width": 1.5}
        traces.append(_trace(best_first, axes, objective, line) | {"meta": {"role": "scored"}})
    return traces


def _failed_lines(
    rows: Sequence[ModelSummary], axes: Sequence[ParallelAxis], colors: ThemeColors
) -> list[dict[str, Any]]:
    if not rows or not axes:
        return []
    line = {"color": faint(colors.bad, 0.8), "width": 1.25, "dash": "dash"}
    return [
        _trace(rows, axes, None, line) | {"name": "failed", "showlegend": True, "meta": {"role": "failed"}}
    ]


def _trace(
    rows: Sequence[ModelSummary],
    axes: Sequence[ParallelAxis],
    objective: ParallelAxis | None,
    line: Mapping[str, Any],
) -> dict[str, Any]:
    """Return one trace of several models' lines, with gaps between them."""
    x: list[float | None] = []
    y: list[float | None] = []
    models: list[list[str]] = []
    hover: list[str] = []
    for row in rows:
        positions = [axis.position(row.hyperparams.get(axis.name)) for axis in axes]
        if objective is not None:
            positions.append(objective.position(row.best))
        hover_text = _hover(row, axes, objective)
        x += [*range(len(positions)), None]
        y += [
            *(round(position, 5) for position in positions),
            None,
        ]  # Finer than any screen, with half the bytes.
        models += [[row.id]] * (len(positions) + 1)
        hover += [hover_text] * (len(positions) + 1)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": dict(line),
        "customdata": models,
        "hoverinfo": "text",
        "hovertext": hover,
        "connectgaps": False,
        "showlegend": False,
    }


def _hover(row: ModelSummary, axes: Sequence[ParallelAxis], objective: ParallelAxis | None) -> str:
    values = [f"{axis.name} = {word(row.hyperparams.get(axis.name))}" for axis in axes]
    end = f"{objective.name} {number(row.best)} at epoch {row.best_epoch}" if objective else "failed"
    return lines(row.id, *values, end)


def _layout(axes: Sequence[ParallelAxis], colors: ThemeColors) -> dict[str, Any]:
    lines_of_axes = [
        {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": {"color": colors.quiet, "width": 1}}
        for at in range(len(axes))
    ]
    notes = []
    for at, axis in enumerate(axes):
        better = ("less is better" if axis.is_reversed else "more is better") if axis.is_metric else ""
        heading = {"text": lines(axis.name, better), "name": f"axis {at}"}
        notes.append(annotation("", colors, x=at, y=1.06, yanchor="bottom") | heading)
        notes += [
            annotation(
                label,
                colors,
                x=at,
                y=position,
                xanchor="right",
                xshift=-5,
                font={"size": 11, "color": colors.ink},
                bgcolor=faint(colors.ground, 0.75),
                borderpad=1,
            )
            for position, label in axis.ticks()
        ]
    hidden = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": ""}
    return {
        "shapes": lines_of_axes,
        "annotations": notes,
        "xaxis": hidden | {"range": [-0.02, len(axes) - 0.98], "fixedrange": True},
        "yaxis": hidden | {"range": [-0.04, 1.22], "fixedrange": True},
        "margin": {"l": 72, "r": 56, "t": 44, "b": 16},
        # The page's script handles drags along an axis.
        "dragmode": False,
    }


# --- words ----------------------------------------------------------------------------------------


def _row(row: ModelSummary, names: Sequence[str]) -> tuple[Cell, ...]:
    return (row.id, *(word(row.hyperparams.get(name)) for name in names), row.best)


def _description(
    drawn: Sequence[ModelSummary],
    failed: Sequence[ModelSummary],
    axes: Sequence[ParallelAxis],
    objective: ParallelAxis,
) -> str:
    best = drawn[0]
    values = ", ".join(f"{axis.name} = {word(best.hyperparams.get(axis.name))}" for axis in axes)
    hover_text = f"Parallel coordinates of {len(drawn):,} models. "
    hover_text += f"The best {objective.name} is {number(best.best)}, of {best.id}"
    hover_text += f" with {values}." if values else "."
    return hover_text + (f" {len(failed):,} models failed without a value." if failed else "")
