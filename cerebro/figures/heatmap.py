"""Heat map of the best value for each pair of values of two hyperparameters. Pure.

`cerebro.client.reporting.drawings` and `dispatcher.analysis.figures` call it and choose the two hyperparameters.
Numbers with more than 12 distinct values are grouped into 12 intervals.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import JsonValue

from cerebro.figures.frame import Figure, axis, cut, distinct_labels, empty, figure, lines, number, text
from cerebro.figures.hyperparams import numbers_of, scale, values_of
from cerebro.figures.models import ModelSummary, scores
from cerebro.figures.palette import THEME_COLORS, Theme, colour_scale

_MAX_VALUES = 12
"""Numbers with more distinct values are grouped into this number of intervals."""

_LABELLED = 100
"""Maximum number of cells with their value as text."""


def heatmap(
    rows: Sequence[ModelSummary],
    *,
    metric: str,
    mode: Literal["min", "max"],
    x: str,
    y: str,
    values: Mapping[str, float] | None = None,
    theme: Theme = "light",
) -> Figure:
    """Draw a cell with the best objective for each pair of values; a cell without models is empty.

    Args:
        x, y: hyperparameters. Numbers with many values are grouped into intervals, even on their best axis.
        values: see `scatter`.
    """
    title = f"Best {metric} by {x} and {y}"
    objective = scores(rows, values)
    shown = [row for row in rows if row.id in objective]
    if not shown:
        return empty("heatmap", f"no model has a value of {metric} yet", theme=theme, title=title)
    x_positions, columns = _cells(x, values_of(x, shown), values_of(x, rows))
    y_positions, levels = _cells(y, values_of(y, shown), values_of(y, rows))
    cells: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for row, column, level in zip(shown, x_positions, y_positions, strict=True):
        cells[level, column].append(row.id)

    def better(models: Sequence[str]) -> str:
        return (max if mode == "max" else min)(models, key=lambda model: objective[model])

    best = {position: better(models) for position, models in cells.items()}
    positions = [[(level, column) for column in range(len(columns))] for level in range(len(levels))]

    def hover(position: tuple[int, int]) -> str:
        where = f"{x} = {columns[position[1]]}, {y} = {levels[position[0]]}"
        best_text = f"best {metric} {number(objective[best[position]])}, of {best[position]}"
        return lines(where, best_text, f"{len(cells[position])} models")

    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [
            [objective[best[position]] if position in best else None for position in level]
            for level in positions
        ],
        "colorscale": best_first_scale(mode, theme),
        # Without a gap Plotly smooths the cells.
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hoverinfo": "text",
        "hovertext": [
            [hover(position) if position in best else "" for position in level] for level in positions
        ],
        "customdata": [
            [[best[position]] if position in best else [""] for position in level] for level in positions
        ],
        "colorbar": colour_bar(metric, theme),
    }
    if len(columns) * len(levels) <= _LABELLED:
        trace["text"] = [
            [f"{objective[best[position]]:.4g}" if position in best else "" for position in level]
            for level in positions
        ]
        trace["texttemplate"] = "%{text}"
    winner = better(list(objective))
    table = (
        (columns[column], levels[level], objective[model], model, len(cells[level, column]))
        for (level, column), model in sorted(best.items())
    )
    colors = THEME_COLORS[theme]
    return figure(
        "heatmap",
        [trace],
        theme=theme,
        title=title,
        description=f"Heat map of the best {metric} for {len(columns)} values of {x} and {len(levels)} of {y}. "
        f"The best is {number(objective[winner])}, of {winner}.",
        table=cut(table, (x, y, f"best {metric}", "model", "models")),
        layout={
            "xaxis": axis(colors, x, showgrid=False, **_ticks(columns)),
            "yaxis": axis(colors, y, showgrid=False, **_ticks(levels)),
        },
    )


def best_first_scale(mode: str, theme: Theme) -> list[list[float | str]]:
    """Return the colour scale; the best value has the same colour in both directions."""
    colours = colour_scale(theme)
    return colours if mode == "max" else [[1 - float(at), tint] for at, tint in reversed(colours)]


def colour_bar(metric: str, theme: Theme) -> dict[str, Any]:
    """Return the legend of the colours of a metric."""
    colors = THEME_COLORS[theme]
    title = {"text": text(metric), "side": "right", "font": {"color": colors.ink}}
    return {"title": title, "tickfont": {"color": colors.quiet}, "thickness": 10, "outlinewidth": 0}


def _ticks(labels: Sequence[str]) -> dict[str, object]:
    return {"tickvals": list(range(len(labels))), "ticktext": [text(label) for label in labels]}


def _cells(
    name: str, values: Sequence[JsonValue], all_values: Sequence[JsonValue]
) -> tuple[list[int], tuple[str, ...]]:
    """Return each value's position and the labels of positions; `all_values` as in `scale`."""
    numbers = numbers_of(values)
    distinct = sorted(set(numbers))
    if len(numbers) < len(values):
        cell_scale = scale(name, values, all_values=all_values)
        return [cell_scale.position(value) for value in values], cell_scale.categories
    if len(distinct) <= _MAX_VALUES:
        return [distinct.index(value) for value in numbers], tuple(distinct_labels(distinct, 6))
    low, high = distinct[0], distinct[-1]
    shares = [i / _MAX_VALUES for i in range(1, _MAX_VALUES)]
    if scale(name, values, all_values=all_values).kind == "log":
        edges = [low * math.pow(high / low, share) for share in shares]
    else:
        edges = [low * (1 - share) + high * share for share in shares]
    labels = tuple(f"{a} to {b}" for a, b in pairwise(distinct_labels([low, *edges, high], 3)))
    return [bisect_right(edges, value) for value in numbers], labels
