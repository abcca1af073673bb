"""Contours of the metric over two hyperparameters, with a dot for each model. Pure.

The surface between the models is a mean of their values, weighted by the inverse squared distance (Shepard, 1968). It
predicts nothing. Models without the hyperparameter are in the category "(absent)".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from cerebro.figures.frame import Figure, cut, empty, figure, lines, number, significant
from cerebro.figures.heatmap import best_first_scale, colour_bar
from cerebro.figures.hyperparams import Scale, numbers_of, scale, values_of, word
from cerebro.figures.models import ModelSummary, ranked, scores
from cerebro.figures.palette import THEME_COLORS, Theme
from cerebro.figures.scatter import value_axis

MAX_MODELS = 400
"""Maximum number of models; the best are drawn."""

_STEPS = 24
"""Number of grid points of an axis with numbers."""

_MIN_MODELS = 3
"""Minimum number of models for a surface."""

_SMOOTHING = 1e-4
"""Avoids a division by zero at a model's position. The axes have a length of 1."""
_MAX_GRID = 24
"""Maximum number of categories of an axis. With more, only the models' dots are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _GridAxis:
    """One axis: positions of models from 0 to 1, and grid points with their values for Plotly."""

    scale: Scale
    positions: list[float]
    values: list[Any]
    grid: list[float]
    grid_values: list[Any]


def contour(
    rows: Sequence[ModelSummary],
    *,
    metric: str,
    mode: Literal["min", "max"],
    x: str,
    y: str,
    values: Mapping[str, float] | None = None,
    theme: Theme = "light",
) -> Figure:
    """Draw contours of the objective over two hyperparameters and a dot for each model with a value.

    Args:
        x, y: hyperparameters; they choose logarithmic and category axes as in `scatter`.
        values: see `scatter`.
    """
    title = f"{metric} over {x} and {y}"
    objective = scores(rows, values)
    scored = [row for row in ranked(rows, mode) if row.id in objective]
    shown = scored[:MAX_MODELS]
    if not shown:
        return empty("contour", f"no model has a value of {metric} yet", theme=theme, title=title)
    if len(shown) < len(scored):
        title += f": the best {len(shown)} of {len(scored):,} models"
    colors = THEME_COLORS[theme]
    across, along = (_grid_axis(name, shown, rows) for name in (x, y))
    heights = [objective[row.id] for row in shown]
    traces: list[dict[str, Any]] = []
    if len(shown) >= _MIN_MODELS and max(len(across.grid), len(along.grid)) <= _MAX_GRID:
        traces.append(
            {
                "type": "contour",
                "x": across.grid_values,
                "y": along.grid_values,
                "z": _surface(across, along, heights),
                "colorscale": best_first_scale(mode, theme),
                "colorbar": colour_bar(metric, theme),
                "contours": {"coloring": "heatmap"},
                "line": {"width": 0.5, "color": colors.grid},
                "hoverinfo": "skip",
                "ncontours": 12,
            }
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": across.values,
            "y": along.values,
            "marker": {
                "size": 8,
                "color": colors.ground,
                "line": {"width": 1.5, "color": colors.ink},
            },
            "customdata": [[row.id] for row in shown],
            "hoverinfo": "text",
            "hovertext": [
                lines(
                    f"{row.id}: {metric} {number(objective[row.id])}",
                    *(f"{name} = {word(row.hyperparams.get(name))}" for name in (x, y)),
                )
                for row in shown
            ],
        }
    )
    best = shown[0]
    return figure(
        "contour",
        traces,
        theme=theme,
        title=title,
        description=f"Contours of {metric} over {x} and {y}, from {len(shown):,} models. "
        f"The best is {number(objective[best.id])}, of {best.id}.",
        table=cut(
            (
                (
                    row.id,
                    word(row.hyperparams.get(x)),
                    word(row.hyperparams.get(y)),
                    objective[row.id],
                )
                for row in shown
            ),
            ("model", x, y, metric),
        ),
        layout={
            "xaxis": value_axis(across.scale, shown, colors, showgrid=False),
            "yaxis": value_axis(along.scale, shown, colors, showgrid=False),
        },
    )


def _grid_axis(name: str, shown: Sequence[ModelSummary], rows: Sequence[ModelSummary]) -> _GridAxis:
    values = values_of(name, shown)
    axis_scale = scale(name, values, all_values=values_of(name, rows))
    if axis_scale.kind == "category":
        last_place = max(1, len(axis_scale.categories) - 1)
        places = [axis_scale.position(value) for value in values]
        grid = list(range(len(axis_scale.categories)))
        return _GridAxis(
            scale=axis_scale,
            positions=[place / last_place for place in places],
            values=list(places),
            grid=[place / last_place for place in grid],
            grid_values=list(grid),
        )
    numbers = numbers_of(values)
    is_log = axis_scale.kind == "log"
    scaled = [math.log10(value) for value in numbers] if is_log else numbers
    low, high = min(scaled), max(scaled)
    width = high - low
    if not 0 < width < math.inf:
        width = 1.0
    grid_places = [step / (_STEPS - 1) for step in range(_STEPS)]
    scaled_grid = [low + share * width for share in grid_places]
    return _GridAxis(
        scale=axis_scale,
        positions=[(value - low) / width for value in scaled],
        values=_plain(values),
        grid=grid_places,
        grid_values=[significant(10**value if is_log else value) for value in scaled_grid],
    )


def _plain(values: Sequence[JsonValue]) -> list[float]:
    return [significant(value) for value in numbers_of(values)]


def _surface(across: _GridAxis, along: _GridAxis, heights: Sequence[float]) -> list[list[float]]:
    models = list(zip(across.positions, along.positions, heights, strict=True))

    def height(x: float, y: float) -> float:
        total = weights = 0.0
        for model_x, model_y, value in models:
            weight = 1.0 / (_SMOOTHING + (x - model_x) ** 2 + (y - model_y) ** 2)
            weight *= weight
            total += weight * value
            weights += weight
        return significant(total / weights)

    return [[height(x, y) for x in across.grid] for y in along.grid]
