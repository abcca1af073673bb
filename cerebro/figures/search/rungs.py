"""Rungs of a search as a picture: a dot for each model at each rung, and the outcome there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from cerebro.figures.frame import Cell, Figure, axis, cut, empty, figure, lines, number, significant
from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, faint
from cerebro.state.runs.rungs import AtRung, Fate, Rung, counts

MAX_MODELS = 500
"""Maximum number of models of a rung; the best are drawn."""

_MAX_TICKS = 12
_OUTCOMES: dict[str, tuple[tuple[Fate, ...], str, str]] = {
    "promoted": (("goes on",), "triangle-up", "good"),
    "trained to the end": (("trained", "stays"), "diamond", "ink"),
    "waiting or running": (("waits", "on the way"), "circle-open", "quiet"),
    "stopped": (("stopped",), "x", "quiet"),
    "failed": (("failed",), "cross", "bad"),
}
"""Name in the legend -> fates, Plotly's symbol, and the attribute of the theme's colour."""

_SPREAD = 0.3
"""Half the width of the line at the worst promoted value, as a share of the distance between rungs."""


def rungs(
    all_rungs: Sequence[Rung],
    *,
    metric: str,
    mode: Literal["min", "max"],
    is_log: bool = False,
    theme: Theme = "light",
) -> Figure:
    """Draw the metric of the models at each rung, with lines from a model's rung to its next one.

    A short line marks the worst promoted value of a rung.

    Args:
        all_rungs: see `cerebro.state.runs.rungs.rungs`.
        is_log: True for a logarithmic y axis, which omits values that are not positive.
    """
    ordered = sorted(all_rungs, key=lambda rung: rung.epochs)
    if not any(each.value is not None for rung in ordered for each in rung.models):
        return empty("rungs", "no model has reached a rung yet", theme=theme, title="Rungs")
    colors = THEME_COLORS[theme]
    shown = [[each for each in rung.models if each.value is not None][:MAX_MODELS] for rung in ordered]
    is_cut = any(sum(each.value is not None for each in rung.models) > MAX_MODELS for rung in ordered)
    traces = [
        *_links(shown, colors),
        *_limits(ordered, colors),
        *_outcomes(ordered, shown, metric, colors),
    ]
    promoted = sum(rung.count("goes on") for rung in ordered)
    every = -(-len(ordered) // _MAX_TICKS)
    places = [place for place in range(len(ordered)) if place % every == 0 or place == len(ordered) - 1]
    return figure(
        "rungs",
        traces,
        theme=theme,
        title=f"{metric} at rungs" + (f": the best {MAX_MODELS} models of each" if is_cut else ""),
        description=f"{len(ordered)} rungs with {promoted:,} promotions. "
        + "; ".join(f"{rung.name}: {counts(rung)}" for rung in ordered[:_MAX_TICKS])
        + ".",
        table=cut(_rows(ordered), ("epochs", "model", metric, "outcome")),
        layout={
            "xaxis": axis(
                colors,
                "rung (epochs)",
                tickvals=places,
                ticktext=[f"{ordered[place].epochs:,}" for place in places],
                range=[-0.5, len(ordered) - 0.5],
            ),
            "yaxis": axis(colors, metric, type="log" if is_log else "linear", hoverformat=".6~g"),
            "showlegend": True,
        },
    )


def _outcomes(
    ordered: Sequence[Rung], shown: Sequence[Sequence[AtRung]], metric: str, colors: ThemeColors
) -> Iterator[dict[str, Any]]:
    for name, (fates, symbol, tint) in _OUTCOMES.items():
        dots = [(place, each) for place, models in enumerate(shown) for each in models if each.fate in fates]
        if not dots:
            continue
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [place for place, _ in dots],
            "y": [significant(each.value or 0.0) for _, each in dots],
            "marker": {
                "size": 9,
                "symbol": symbol,
                "color": getattr(colors, tint),
                "line": {"width": 1.5, "color": getattr(colors, tint)} if "open" in symbol else {"width": 0},
            },
            "customdata": [[each.model] for _, each in dots],
            "hoverinfo": "text",
            "hovertext": [
                lines(
                    f"{each.model}: {metric} {number(each.value)}",
                    f"{ordered[place].epochs:,} epochs: {each.words}",
                )
                for place, each in dots
            ],
        }


def _links(shown: Sequence[Sequence[AtRung]], colors: ThemeColors) -> Iterator[dict[str, Any]]:
    """Yield one trace with a line from each model's rung to its next one."""
    x: list[float | None] = []
    y: list[float | None] = []
    previous: Mapping[str, tuple[int, AtRung]] = {}
    for place, models in enumerate(shown):
        for each in models:
            if each.model in previous:
                start, known = previous[each.model]
                x += [start, place, None]
                y += [significant(known.value or 0.0), significant(each.value or 0.0), None]
        previous = {**previous, **{each.model: (place, each) for each in models}}
    if x:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "promotion",
            "x": x,
            "y": y,
            "line": {"width": 1, "color": faint(colors.quiet, 0.4)},
            "hoverinfo": "skip",
            "showlegend": False,
        }


def _limits(ordered: Sequence[Rung], colors: ThemeColors) -> Iterator[dict[str, Any]]:
    """Yield one trace with a short line at the worst promoted value of each rung."""
    ends = [(place, rung.last_on) for place, rung in enumerate(ordered) if rung.last_on is not None]
    if ends:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "worst promoted",
            "x": [x for place, _ in ends for x in (place - _SPREAD, place + _SPREAD, None)],
            "y": [y for _, value in ends for y in (value, value, None)],
            "line": {"width": 1.5, "color": colors.ink, "dash": "dot"},
            "hoverinfo": "skip",
        }


def _rows(ordered: Sequence[Rung]) -> Iterator[tuple[Cell, ...]]:
    for rung in reversed(ordered):
        for each in rung.models:
            yield rung.epochs, each.model, each.value, each.words
