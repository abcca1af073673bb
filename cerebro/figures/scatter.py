"""Scatter plots of the objective over each hyperparameter, at most 10 panels. Pure.

`cerebro.client.reporting.drawings` and `dispatcher.analysis.figures` call it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cerebro.figures.frame import (
    Figure,
    axis,
    cut,
    distinct_labels,
    empty,
    figure,
    lines,
    number,
    significant,
    text,
)
from cerebro.figures.hyperparams import Scale, numbers_of, scale, values_of, varying, word
from cerebro.figures.models import ModelSummary, scores
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, colour

MAX_PANELS = 10
"""Maximum number of panels: more are too small to read."""

_PANEL_PX = 230
_FEW_VALUES = 6
"""Maximum number of distinct numbers with a tick each."""


def scatter(
    rows: Sequence[ModelSummary],
    *,
    metric: str,
    mode: Literal["min", "max"],
    names: Sequence[str] = (),
    is_log: bool = False,
    columns: int = 3,
    values: Mapping[str, float] | None = None,
    theme: Theme = "light",
) -> Figure:
    """Draw a panel for each hyperparameter and a dot for each model with a value.

    Args:
        names: hyperparameters; default: the varying ones. The first `MAX_PANELS` are drawn, as the title says.
        is_log: True for a logarithmic axis of the objective.
        columns: panels in a row; one suits a phone.
        values: model id -> objective to draw instead of its best: see `cerebro.figures.models.values_at`.
    """
    objective = scores(rows, values)
    shown = [row for row in rows if row.id in objective]
    wanted = tuple(names) or varying(rows)
    chosen = wanted[:MAX_PANELS]
    title = f"{metric} over hyperparameters"
    if len(chosen) < len(wanted):
        title += f": {len(chosen)} of {len(wanted)}"
    if not shown:
        return empty("scatter", f"no model has a value of {metric} yet", theme=theme, title=title)
    if not chosen:
        return empty("scatter", "no hyperparameter varies", theme=theme, title=title)
    hover = [_hover(row, objective[row.id], metric, chosen) for row in shown]
    common = {
        "type": "scatter",
        "mode": "markers",
        "y": [significant(objective[row.id]) for row in shown],
        "marker": {"size": 7, "color": [colour(row.index, theme) for row in shown]},
        "customdata": [[row.id] for row in shown],
        "hoverinfo": "text",
        "hovertext": hover,
    }
    scales = [scale(name, values_of(name, shown), all_values=values_of(name, rows)) for name in chosen]
    traces = [
        common
        | {"x": _positions(panel_scale, shown), "xaxis": f"x{_suffix(panel)}", "yaxis": f"y{_suffix(panel)}"}
        for panel, panel_scale in enumerate(scales)
    ]
    best = (max if mode == "max" else min)(objective, key=lambda model: objective[model])
    return figure(
        "scatter",
        traces,
        theme=theme,
        title=title,
        description=f"{metric} of {len(shown):,} models over {', '.join(chosen)}. "
        f"The best is {number(objective[best])}, of {best}.",
        table=cut(
            (
                (row.id, *(word(row.hyperparams.get(name)) for name in chosen), objective[row.id])
                for row in shown
            ),
            ("model", *chosen, metric),
        ),
        layout=_panels(scales, shown, metric, THEME_COLORS[theme], is_log=is_log, columns=columns),
    )


def _panels(
    scales: Sequence[Scale],
    rows: Sequence[ModelSummary],
    metric: str,
    colors: ThemeColors,
    *,
    is_log: bool,
    columns: int,
) -> dict[str, Any]:
    columns = max(1, min(len(scales), columns))
    count = math.ceil(len(scales) / columns)
    layout: dict[str, Any] = {
        "grid": {"rows": count, "columns": columns, "pattern": "independent", "xgap": 0.12, "ygap": 0.28},
        "height": 80 + _PANEL_PX * count,
    }
    for panel, panel_scale in enumerate(scales):
        same = {"matches": "y"} if panel else {}
        title = metric if panel % columns == 0 else ""
        layout[f"xaxis{_suffix(panel)}"] = value_axis(panel_scale, rows, colors)
        layout[f"yaxis{_suffix(panel)}"] = axis(colors, title, type="log" if is_log else "linear", **same)
    return layout


def _suffix(panel: int) -> str:
    return str(panel + 1) if panel else ""


def value_axis(
    scale: Scale, rows: Sequence[ModelSummary], colors: ThemeColors, **more: Any
) -> dict[str, Any]:
    """Return the axis of a hyperparameter's values in `rows`, with a tick for each of a few values."""
    if scale.kind != "category":
        values = sorted(set(numbers_of(values_of(scale.name, rows))))
        few = {"tickvals": values, "ticktext": distinct_labels(values, 6)}
        return axis(
            colors, scale.name, type=scale.kind, **(few if len(values) <= _FEW_VALUES else {}), **more
        )
    positions = list(range(len(scale.categories)))
    labels = [text(label) for label in scale.categories]
    return axis(
        colors, scale.name, tickvals=positions, ticktext=labels, range=[-0.5, len(positions) - 0.5], **more
    )


def _positions(scale: Scale, rows: Sequence[ModelSummary]) -> list[Any]:
    values = values_of(scale.name, rows)
    return [scale.position(value) for value in values] if scale.categories else values


def _hover(row: ModelSummary, value: float, metric: str, names: Sequence[str]) -> str:
    hyperparams = (f"{name} = {word(row.hyperparams.get(name))}" for name in names)
    return lines(f"{row.id}: {metric} {number(value)}", *hyperparams)
