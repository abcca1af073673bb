"""Heat map: the best value for each pair of values of two hyper-parameters."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import JsonValue

from cerebro.figures.frame import Figure, apart, axis, cut, empty, figure, lines, number, text
from cerebro.figures.hyperparams import numbers_of, scale, values_of
from cerebro.figures.models import ModelSummary, scores
from cerebro.figures.palette import THEME_COLORS, Theme, colour_scale

_MOST_VALUES = 12
"""Numbers with more distinct values are put into as many intervals."""

_LABELLED = 100
"""Up to so many cells have their value written into them."""


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
    """A cell per pair of values, the best objective in it; an empty cell has no model with a value.

    Args:
        x, y: hyper-parameters. Numbers with many values are put into intervals, even on the axis that suits them.
        values: see `scatter`.
    """
    title = f"Best {metric} by {x} and {y}"
    objective = scores(rows, values)
    shown = [row for row in rows if row.id in objective]
    if not shown:
        return empty("heatmap", f"no model has a value of {metric} yet", theme=theme, title=title)
    across, columns = _cells(x, values_of(x, shown), values_of(x, rows))
    upwards, levels = _cells(y, values_of(y, shown), values_of(y, rows))
    cells: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for row, column, level in zip(shown, across, upwards, strict=True):
        cells[level, column].append(row.id)

    def better(models: Sequence[str]) -> str:
        return (max if mode == "max" else min)(models, key=lambda model: objective[model])

    best = {place: better(found) for place, found in cells.items()}
    places = [[(level, column) for column in range(len(columns))] for level in range(len(levels))]

    def hover(place: tuple[int, int]) -> str:
        where = f"{x} = {columns[place[1]]}, {y} = {levels[place[0]]}"
        won = f"best {metric} {number(objective[best[place]])}, of {best[place]}"
        return lines(where, won, f"{len(cells[place])} models")

    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[objective[best[place]] if place in best else None for place in level] for level in places],
        "colorscale": _scale(mode, theme),
        # A gap also keeps Plotly from smoothing the cells into each other.
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hoverinfo": "text",
        "hovertext": [[hover(place) if place in best else "" for place in level] for level in places],
        "customdata": [[[best[place]] if place in best else [""] for place in level] for level in places],
        "colorbar": _colour_bar(metric, theme),
    }
    if len(columns) * len(levels) <= _LABELLED:
        trace["text"] = [
            [f"{objective[best[place]]:.4g}" if place in best else "" for place in level] for level in places
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


def _scale(mode: str, theme: Theme) -> list[list[float | str]]:
    """The colour of the best value is the same whichever direction is better."""
    colours = colour_scale(theme)
    return colours if mode == "max" else [[1 - float(at), tint] for at, tint in reversed(colours)]


def _colour_bar(metric: str, theme: Theme) -> dict[str, Any]:
    colors = THEME_COLORS[theme]
    title = {"text": text(metric), "side": "right", "font": {"color": colors.ink}}
    return {"title": title, "tickfont": {"color": colors.quiet}, "thickness": 10, "outlinewidth": 0}


def _ticks(labels: Sequence[str]) -> dict[str, object]:
    return {"tickvals": list(range(len(labels))), "ticktext": [text(label) for label in labels]}


def _cells(
    name: str, values: Sequence[JsonValue], tried: Sequence[JsonValue]
) -> tuple[list[int], tuple[str, ...]]:
    """Each value's place, and the places' labels in order; `tried` as in `cerebro.figures.hyperparams.scale`."""
    numbers = numbers_of(values)
    distinct = sorted(set(numbers))
    if len(numbers) < len(values):
        found = scale(name, values, tried=tried)
        return [found.position(value) for value in values], found.categories
    if len(distinct) <= _MOST_VALUES:
        return [distinct.index(value) for value in numbers], tuple(apart(distinct, 6))
    low, high = distinct[0], distinct[-1]
    shares = [i / _MOST_VALUES for i in range(1, _MOST_VALUES)]
    if scale(name, values, tried=tried).kind == "log":
        edges = [low * math.pow(high / low, share) for share in shares]
    else:
        edges = [low * (1 - share) + high * share for share in shares]
    labels = tuple(f"{a} to {b}" for a, b in pairwise(apart([low, *edges, high], 3)))
    return [bisect_right(edges, value) for value in numbers], labels
