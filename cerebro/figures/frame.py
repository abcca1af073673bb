"""Frame, text and data table of all figures: layout, axes, escaping and number formats.

Every figure of this folder calls `figure` or `empty` last. Pure; it knows neither runs nor models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

from cerebro.figures.palette import THEME_COLORS, Theme, ThemeColors, faint

Figure = dict[str, Any]
"""``{"data": [...], "layout": {...}}``, for ``Plotly.newPlot`` and ``plotly.graph_objects.Figure``."""

CONFIG: dict[str, Any] = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
"""Third argument of ``Plotly.newPlot``, for the page and for files."""

# The first two upload the figure to Plotly's cloud; nothing here uses the selection of points.
_NO_BUTTONS = ("sendDataToCloud", "sendChartToCloud", "select2d", "lasso2d", "autoScale2d")

MAX_ROWS = 100
"""Maximum number of rows of a figure's data table."""

_DURATIONS = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"), (math.inf, 86_400.0, "d"))
"""(longest span in seconds, seconds of a step, name of the step) of time axes."""

_LEGEND_SHARE = 0.25
"""Maximum share of a figure's height for its legend; a longer one scrolls."""

_LINE = 40
"""Characters of a line on a phone."""

Cell = str | int | float | None


class Table(NamedTuple):
    """A figure's data, for readers who cannot see it. Long tables are cut to `MAX_ROWS` rows, which `note` says."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


class Duration(NamedTuple):
    """Scale of a time axis: seconds, minutes, hours or days."""

    seconds: float
    name: str

    def of(self, seconds: float) -> float:
        """Convert seconds to this scale."""
        return seconds / self.seconds


def duration(span_s: float) -> Duration:
    """Choose the scale for an axis that spans `span_s` seconds."""
    return next(Duration(step, name) for limit, step, name in _DURATIONS if span_s <= limit)


def figure(
    name: str,
    traces: list[dict[str, Any]],
    *,
    theme: Theme,
    title: str,
    description: str,
    table: Table,
    layout: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Figure:
    """Assemble a figure.

    Args:
        name: the builder's name; while it is the same, a reader's zoom survives updates.
        title: plain text.
        description: one or two sentences about the content, for screen readers.
        layout: additions to the frame's layout.
        meta: additions to name, description and table.
    """
    colors = THEME_COLORS[theme]
    more = dict(layout or {})
    legend = more.pop("legend", {})
    return {
        "data": traces,
        "layout": {
            # Without an empty template the Python package adds its own colours.
            "template": {"layout": {}},
            "title": {
                "text": text(title),
                "font": {"size": 14, "color": colors.ink},
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "pad": {"l": 12, "t": 10},
                "y": 1,
                "yref": "container",
                "yanchor": "top",
            },
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": colors.ink},
            "paper_bgcolor": colors.ground,
            "plot_bgcolor": colors.ground,
            "margin": {"l": 56, "r": 24, "t": 44, "b": 48},
            "hovermode": "closest",
            "hoverlabel": {
                "bgcolor": colors.ground,
                "bordercolor": colors.quiet,
                "font": {"color": colors.ink},
                "align": "left",
                "namelength": -1,
            },
            # Below the marks, because a phone has no room beside them.
            "legend": {
                "font": {"color": colors.ink},
                "itemsizing": "constant",
                "orientation": "h",
                "yref": "container",
                "y": 0,
                "yanchor": "bottom",
                "maxheight": _LEGEND_SHARE,
                **legend,
            },
            "modebar": {
                "bgcolor": faint(colors.ground, 0.8),
                "color": colors.quiet,
                "activecolor": colors.ink,
                "remove": list(_NO_BUTTONS),
            },
            "uirevision": name,
            "showlegend": False,
            **more,
            "meta": {"figure": name, "description": description, "table": _plain(table), **dict(meta or {})},
        },
    }


def empty(name: str, reason: str, *, theme: Theme, title: str) -> Figure:
    """Return a figure that shows why it has no data yet."""
    colors = THEME_COLORS[theme]
    font = {"size": 13, "color": colors.quiet}
    note = annotation("", colors, x=0.5, y=0.5, xref="paper", yref="paper", font=font) | {
        "text": wrapped(reason)
    }
    hidden = {"visible": False}
    return figure(
        name,
        [],
        theme=theme,
        title=title,
        description=reason,
        table=Table((), ()),
        layout={"annotations": [note], "xaxis": hidden, "yaxis": hidden},
        meta={"empty": reason},
    )


def axis(colors: ThemeColors, title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis in the theme's colours; `title` is plain text."""
    options: dict[str, Any] = {
        "gridcolor": colors.grid,
        "linecolor": colors.quiet,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": colors.quiet},
        "ticks": "",
        "exponentformat": "e",
        **more,
    }
    if title:
        options["title"] = {"text": text(title), "font": {"color": colors.ink, "size": 12}, "standoff": 8}
    return options


def annotation(words: str, colors: ThemeColors, **more: Any) -> dict[str, Any]:
    """Return plain text in a figure, without an arrow."""
    return {"text": text(words), "showarrow": False, "font": {"color": colors.ink, "size": 12}, **more}


def text(words: str) -> str:
    """Escape plain text: Plotly interprets some HTML, and ``%{...}`` in templates."""
    return escape(words, quote=False).replace("%{", "%&#123;")


def wrapped(words: str) -> str:
    """Escape plain text and break it into lines short enough for a phone."""
    return lines(*wrap(words, _LINE))


def lines(*words: str) -> str:
    """Join lines of plain text for a hover label, without empty ones."""
    return "<br>".join(text(line) for line in words if line)


def significant(value: float) -> float:
    """Round to six significant digits, as numbers are shown, to send less."""
    return float(f"{value:.6g}")


def number(value: float | None) -> str:
    """Format six significant digits; missing and non-finite numbers in words."""
    if value is None:
        return "missing"
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    return f"{value:.6g}"


def distinct_labels(values: Sequence[float], digits: int) -> list[str]:
    """Format finite numbers with `digits` significant digits, more if two labels would be the same."""
    enough = 17
    while True:
        words = [f"{value:.{digits}g}" for value in values]
        if digits >= enough or len(set(words)) == len(set(values)):
            return words
        digits += 1


def cut(rows: Iterable[Sequence[Cell]], columns: Sequence[str]) -> Table:
    """Return a table of the first `MAX_ROWS` rows, with a note if rows are cut."""
    all_rows = list(rows)
    note = f"the first {MAX_ROWS} of {len(all_rows):,} rows" if len(all_rows) > MAX_ROWS else ""
    return Table(columns, all_rows[:MAX_ROWS], note)


def description(drawn: Figure) -> str:
    """Return a figure's description for screen readers."""
    return str(drawn["layout"]["meta"]["description"])


def table(drawn: Figure) -> Table:
    """Return a figure's data table, which may be empty."""
    stored = drawn["layout"]["meta"]["table"]
    return Table(stored["columns"], stored["rows"], stored["note"])


def _plain(data: Table) -> dict[str, Any]:
    return {"columns": list(data.columns), "rows": [list(row) for row in data.rows], "note": data.note}
