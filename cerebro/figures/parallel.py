"""Parallel coordinates: a line per model over one axis per hyper-parameter, the metric last.

Drawn with ordinary SVG lines on axes of 0 to 1. Plotly's own trace of that name needs WebGL and builds functions from
text, which the page's security policy forbids and many browsers lack. A script of the page brushes: it needs the axes
(``layout.meta.axes``) and the model of each point (``customdata``).
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

MOST_LINES = 1000
"""Beyond: the best ones, and a sample of the others."""

_SAMPLED = 200
"""Size of that sample: every so-manieth of the others, by rank."""

_FAILED = 100
"""Most lines of models that failed, where the others would leave no room for more."""

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
    """Hyper-parameters and what came of them: the best models have the strongest colour and end on top.

    Models that failed are dashed and end before the metric; those without a value yet are left out.

    Args:
        rows: models; of more than `MOST_LINES` the best are drawn, a sample of the others, and the first that failed.
        names: hyper-parameters, from left to right; those that vary if left out.
        is_log: logarithmic axis of the metric, if all its values are positive.
        total: how many models there are, if not all of them are in `rows`.
    """
    title = f"Hyper-parameters and {metric}"
    scored = sorted((row for row in rows if row.best is not None), key=lambda row: _rank(row, mode))
    failed = [row for row in rows if row.best is None and row.failure is not None]
    most = MOST_LINES - min(len(failed), _FAILED)
    drawn = _chosen(scored, most)
    if not drawn:
        return empty("parallel", f"no model has a value of {metric} yet", theme=theme, title=title)
    drawn_failed = failed[: MOST_LINES - len(drawn)]
    shown = drawn + drawn_failed
    chosen = tuple(names) or varying(rows)
    axes = [hyperparameter_axis(name, values_of(name, shown), tried=values_of(name, rows)) for name in chosen]
    objective = objective_axis(
        metric, [row.best for row in drawn if row.best is not None], mode, is_log=is_log
    )
    colors = THEME_COLORS[theme]
    everything = max(total, len(rows))
    if len(shown) < everything:
        title += f": {len(shown):,} of {everything:,} models" + (
            f", the best and every {_step(scored, most)}th of the others" if len(drawn) < len(scored) else ""
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
        meta={"axes": [axis.told() for axis in (*axes, objective)]},
    )


# --- which models ---------------------------------------------------------------------------------


def _rank(row: ModelSummary, mode: str) -> float:
    assert row.best is not None
    return -row.best if mode == "max" else row.best


def _step(scored: Sequence[ModelSummary], most: int) -> int:
    return math.ceil((len(scored) - (most - _SAMPLED)) / _SAMPLED)


def _chosen(scored: Sequence[ModelSummary], most: int) -> list[ModelSummary]:
    if len(scored) <= most:
        return list(scored)
    best = most - _SAMPLED
    return [*scored[:best], *scored[best :: _step(scored, most)]]


# --- marks ----------------------------------------------------------------------------------------


def _scored_lines(
    rows: Sequence[ModelSummary], axes: Sequence[ParallelAxis], objective: ParallelAxis, theme: Theme
) -> list[dict[str, Any]]:
    """One trace per shade, worst first, so that the best lie on top: a thousand traces would be slow."""
    groups: dict[int, list[ModelSummary]] = {}
    for row in rows:
        groups.setdefault(min(int(objective.place(row.best) * _SHADES), _SHADES - 1), []).append(row)
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
    """Lines of several models, with gaps between them."""
    x: list[float | None] = []
    y: list[float | None] = []
    models: list[list[str]] = []
    hover: list[str] = []
    for row in rows:
        places = [axis.place(row.hyperparams.get(axis.name)) for axis in axes]
        if objective is not None:
            places.append(objective.place(row.best))
        said = _hover(row, axes, objective)
        x += [*range(len(places)), None]
        y += [*(round(place, 5) for place in places), None]  # finer than any screen; half of what is sent
        models += [[row.id]] * (len(places) + 1)
        hover += [said] * (len(places) + 1)
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
                y=place,
                xanchor="right",
                xshift=-5,
                font={"size": 11, "color": colors.ink},
                bgcolor=faint(colors.ground, 0.75),
                borderpad=1,
            )
            for place, label in axis.ticks()
        ]
    hidden = {"showgrid": False, "zeroline": False, "showticklabels": False, "ticks": ""}
    return {
        "shapes": lines_of_axes,
        "annotations": notes,
        "xaxis": hidden | {"range": [-0.02, len(axes) - 0.98], "fixedrange": True},
        "yaxis": hidden | {"range": [-0.04, 1.22], "fixedrange": True},
        "margin": {"l": 72, "r": 56, "t": 44, "b": 16},
        # The page's script brushes by dragging along an axis.
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
    said = f"Parallel coordinates of {len(drawn):,} models. "
    said += f"The best {objective.name} is {number(best.best)}, of {best.id}"
    said += f" with {values}." if values else "."
    return said + (f" {len(failed):,} models failed without a value." if failed else "")
