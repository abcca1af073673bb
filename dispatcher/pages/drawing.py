"""Figures as functions that draw later.

The function of a figure takes the read model, the query and the time, and returns a `Drawing`. A `Drawing` needs no
lock, because it refers to immutable data only. It returns Plotly's ``{"data", "layout"}``. For an empty figure
``layout.meta.empty`` has the reason. `api.views` calls the drawings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebro.figures import Figure

Drawing = Callable[[], Figure]


def empty_drawing(why: str = "No fit run yet: start one with run_fit.") -> Drawing:
    """Return an empty figure with a reason."""
    return lambda: {"data": [], "layout": {"meta": {"empty": why}}}


def with_reason(draw: Drawing, why: str) -> Drawing:
    """Return the figure, with the reason `why` if it has no data."""

    def drawn() -> Figure:
        figure = draw()
        if figure["data"]:
            return figure
        layout: dict[str, Any] = dict(figure["layout"])
        known = layout.get("meta", {})
        layout["meta"] = {**known, "empty": why or known.get("description", "No data yet.")}
        return {"data": [], "layout": layout}

    return drawn
