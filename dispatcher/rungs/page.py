"""Route of the tab Search. The page links the tab only for fit runs with a search."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.read_model import ReadModel
from dispatcher.rungs.view import MAX_SIZE, RungsQuery, search
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

AXES = {"model": "models", "time": "time", "epoch": "trained epochs"}
"""`cerebro.figures.ProgressAxis` -> word on the page."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/search", "search")
    def page(name: str) -> Response:
        return tabs.answer(name, "search", "rungs/rungs.html", _fill)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    query = parsed_query(RungsQuery)
    axis = request.args.get("axis", "")
    axis = axis if axis in AXES else "model"
    is_log = "1" if request.args.get("log") == "1" else ""
    return {
        "view": search(read_model, fit=header.fits.chosen, size=query.size),
        "most": MAX_SIZE,
        "axes": AXES,
        "axis": axis,
        "is_log": is_log,
        "best_so_far": figure_url(header.name, "best_so_far", fit=header.fits.chosen, axis=axis, log=is_log),
        "hypervolume": figure_url(header.name, "hypervolume", fit=header.fits.chosen, axis=axis),
        "rungs": figure_url(header.name, "rungs", fit=header.fits.chosen, log=is_log),
    }
