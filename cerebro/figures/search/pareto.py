"""Models over two objectives, with the Pareto front. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cerebro.contract.runs import FitRequest
from cerebro.figures.frame import Figure, axis, cut, empty, figure, lines, number, significant
from cerebro.figures.models import ModelSummary, ranks_by_model
from cerebro.figures.palette import THEME_COLORS, Theme, colour

MAX_DOTS = 2_000
"""Maximum number of models; the first in the order of the leaderboard are drawn."""

_FRONT, _DOMINATED, _INFEASIBLE = "Pareto front", "dominated", "violates a constraint"
_SYMBOLS = {_DOMINATED: "circle", _INFEASIBLE: "x", _FRONT: "diamond"}


def pareto_axes(request: FitRequest, x: str = "", y: str = "") -> tuple[str, str] | None:
    """Return the names of both axes; `None` for a fit that compares one value.

    By default the first objective is on the y axis, and the second one, or the first constraint, on the x axis.
    """
    names = request.compared_names
    y = y if y in names else next(name for name in names if name != x)
    candidates = [name for name in names if name != y]
    return (x if x in candidates else candidates[0], y) if candidates else None


def pareto(
    rows: Sequence[ModelSummary],
    request: FitRequest,
    *,
    x: str = "",
    y: str = "",
    is_log: bool = False,
    theme: Theme = "light",
) -> Figure:
    """Draw a dot for each model without its repeats, and a line through the models that no other one dominates.

    With more than two objectives, the front is that of all objectives, so the line may bend back.

    Args:
        rows: models, best first.
        x, y: names of objectives or of values in constraints; see `pareto_axes`.
        is_log: True for logarithmic axes.
    """
    axes = pareto_axes(request, x, y)
    title = f"{axes[1]} over {axes[0]}" if axes else "Pareto front"
    if axes is None:
        return empty("pareto", "the run has one objective and no constraints", theme=theme, title=title)
    known = [row for row in rows if row.is_listed and all(name in row.metrics for name in axes)]
    known = [row for row in known if row.best is not None]
    if not known:
        return empty(
            "pareto", f"no model has values of {axes[0]} and {axes[1]} yet", theme=theme, title=title
        )
    by_rank, colors = ranks_by_model(rows), THEME_COLORS[theme]
    drawn = known[:MAX_DOTS]
    front = [row for row in known if by_rank.get(row.id) == 1 and row.point.is_feasible]
    front.sort(key=lambda row: (row.metrics[axes[0]], row.metrics[axes[1]]))
    on_front = {row.id for row in front}
    groups = {name: [row for row in drawn if _group(row, on_front) == name] for name in _SYMBOLS}
    traces: list[dict[str, Any]] = [_line(front, axes, colors.ink)] if len(front) > 1 else []
    traces += [
        _dots(group, axes)
        | {
            "name": name,
            "hovertext": [_hover(row, request, by_rank) for row in group],
            "marker": {
                "size": 10 if name == _FRONT else 7,
                "symbol": _SYMBOLS[name],
                "color": [colour(row.index, theme) for row in group],
            },
        }
        for name, group in groups.items()
        if group
    ]
    scale = "log" if is_log else "linear"
    words = f"{len(front):,} of {len(known):,} models are on the Pareto front"
    if front:
        best = min(front, key=lambda row: (row.point.losses, row.index))
        words += f"; the best {request.metric} is {number(best.metrics[request.metric])}, of {best.id}"
    limits = [f" Constraint: {each}." for each in request.constraints]
    return figure(
        "pareto",
        traces,
        theme=theme,
        title=title,
        description=f"{axes[1]} over {axes[0]}. {words}.{''.join(limits)}",
        table=cut(
            (
                (
                    row.id,
                    by_rank.get(row.id),
                    _yes(row),
                    *(row.metrics.get(name) for name in request.compared_names),
                )
                for row in drawn
            ),
            ("model", "front", "meets constraints", *request.compared_names),
        ),
        layout={
            "showlegend": True,
            "legend": {"traceorder": "reversed"},
            "xaxis": axis(colors, _title(request, axes[0]), type=scale),
            "yaxis": axis(colors, _title(request, axes[1]), type=scale),
            "shapes": [
                _limit(each.name == axes[0], each.limit, colors.bad)
                for each in request.constraints
                if each.name in axes
            ],
        },
    )


def _yes(row: ModelSummary) -> str:
    return "yes" if row.point.is_feasible else "no"


def _title(request: FitRequest, name: str) -> str:
    modes = request.objectives or {request.metric: request.mode}
    return f"{name} ({'smaller' if modes[name] == 'min' else 'larger'} is better)" if name in modes else name


def _line(front: Sequence[ModelSummary], axes: tuple[str, str], ink: str) -> dict[str, Any]:
    x, y = axes
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [significant(row.metrics[x]) for row in front],
        "y": [significant(row.metrics[y]) for row in front],
        "line": {"width": 2, "color": ink, "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _group(row: ModelSummary, on_front: Collection[str]) -> str:
    if not row.point.is_feasible:
        return _INFEASIBLE
    return _FRONT if row.id in on_front else _DOMINATED


def _dots(rows: Sequence[ModelSummary], axes: tuple[str, str]) -> dict[str, Any]:
    x, y = axes
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [significant(row.metrics[x]) for row in rows],
        "y": [significant(row.metrics[y]) for row in rows],
        "customdata": [[row.id] for row in rows],
        "hoverinfo": "text",
    }


def _hover(row: ModelSummary, request: FitRequest, by_rank: Mapping[str, int]) -> str:
    values = (f"{name} {number(row.metrics.get(name))}" for name in request.compared_names)
    return lines(f"{row.id}: {_front_text(row, by_rank)}", *values)


def _front_text(row: ModelSummary, by_rank: Mapping[str, int]) -> str:
    return f"front {by_rank[row.id]}" if row.point.is_feasible else "violates a constraint"


def _limit(is_x: bool, limit: float, color: str) -> dict[str, Any]:
    """Return the line of a constraint's limit."""
    along, across = ("y", "x") if is_x else ("x", "y")
    return {
        "type": "line",
        f"{along}ref": "paper",
        f"{along}0": 0,
        f"{along}1": 1,
        f"{across}0": limit,
        f"{across}1": limit,
        "line": {"width": 1, "dash": "dash", "color": color},
    }
