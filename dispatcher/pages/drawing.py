"""What a feature's figure is: how to draw it, or why there is nothing to draw yet.

A function of a figure takes the read model, what is asked for and the time, and returns a `Drawing`. That needs
nothing that changes, so whoever calls it need not hold the experiment. It gives Plotly's ``{"data", "layout"}``; where
there is nothing to draw yet, ``layout.meta.empty`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cerebro.figures import Figure

Drawing = Callable[[], Figure]


def nothing(why: str = "No model is trained yet: run_fit plans the first ones.") -> Drawing:
    """A figure that says why there is nothing to see."""
    return lambda: {"data": [], "layout": {"meta": {"empty": why}}}


def explained(draw: Drawing, why: str) -> Drawing:
    """The figure; one without marks says why."""

    def drawn() -> Figure:
        figure = draw()
        if figure["data"]:
            return figure
        layout: dict[str, Any] = dict(figure["layout"])
        known = layout.get("meta", {})
        layout["meta"] = {**known, "empty": why or known.get("description", "There is nothing to draw yet.")}
        return {"data": [], "layout": layout}

    return drawn
