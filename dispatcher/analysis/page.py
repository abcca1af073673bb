"""Route of the tab Analysis: Pareto front, parallel coordinates, importance, heat map, contours and slices.

Computes the form and the table of brushed models (10 rows); the figures are only linked
(`dispatcher.analysis.figures`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flask import Blueprint, Response, request

from cerebro.contract.runs import FitRequest
from cerebro.figures import pareto_axes, varying
from dispatcher.models.page import table
from dispatcher.models.query import ModelQuery
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_ROWS = 10


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/analysis", "analysis")
    def page(name: str) -> Response:
        return tabs.answer(name, "analysis", "analysis/analysis.html", _fill)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    chosen, brush = request.args.get("filter", ""), request.args.get("brush", "")
    run = read_model.fit(header.fits.chosen)
    if run is None:
        return {"view": None}
    # The brush filters only the table below the figure. The figure shows the other lines dimmed.
    both = " and ".join(f"({part})" for part in (chosen, brush) if part.strip())
    view, mistake = table(read_model, parsed_query(ModelQuery, filter=both, size=_ROWS))
    if mistake:
        chosen = ""
    names = varying(read_model.table(run).rows())
    x, y = _axes(names)
    sliced = request.args.get("slice", "")
    sliced = sliced if sliced in names else ""
    is_log = "1" if request.args.get("log") == "1" else ""

    def figure(name: str, **parameters: object) -> str:
        return figure_url(header.name, name, fit=run.id, filter=chosen, **parameters)

    return {
        "view": view,
        "mistake": mistake,
        "brush": brush,
        "names": names,
        "x": x,
        "y": y,
        "is_log": is_log,
        "parallel": figure("parallel", log=is_log),
        "slice": sliced,
        "scatter": figure("scatter", log=is_log, names=sliced),
        "heatmap": figure("heatmap", x=x, y=y),
        "contour": figure("contour", x=x, y=y),
        "importance": figure("importance"),
        **_pareto(run.fit_request, figure),
    }


def _pareto(fit: FitRequest, figure: Callable[..., str]) -> Mapping[str, object]:
    """Return the axes of the Pareto front and its address; empty texts for a fit that compares one value."""
    axes = pareto_axes(fit, request.args.get("px", ""), request.args.get("py", ""))
    if axes is None:
        return {"compared": (), "px": "", "py": "", "pareto": ""}
    px, py = axes
    return {"compared": fit.compared_names, "px": px, "py": py, "pareto": figure("pareto", x=px, y=py)}


def _axes(names: tuple[str, ...]) -> tuple[str, str]:
    """Return the axes of the heat map, by default the first two that vary."""
    x = request.args.get("x", "")
    x = x if x in names else next(iter(names), "")
    y = request.args.get("y", "")
    return x, y if y in names and y != x else next((name for name in names if name != x), "")
