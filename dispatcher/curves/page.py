"""Route of the tab Curves: the best or selected models, over epochs, rows or time.

Computes the form and the ranked list of models. The browser loads the figure from the read API (`curves.figure`).
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.errors import BadRequestError
from cerebro.figures.curves import restyled
from dispatcher.curves.view import CurveQuery, curves
from dispatcher.models.page import picked_models
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

TOPS = (1, 5, 10, 20, 50, 100)
AXES = (("epoch", "epochs"), ("row", "rows"), ("time", "time"))
SPLITS = (("", "the ranking split"), ("valid", "validation"), ("train", "training"), ("live", "live"))
DEFAULT_TOP = 10


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/curves", "curves")
    def page(name: str) -> Response:
        return tabs.answer(name, "curves", "curves/curves.html", _fill)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    picked = picked_models()
    fixed: dict[str, object] = {"models": ",".join(picked)}
    if "top" not in request.args:
        fixed["top"] = DEFAULT_TOP
    query, mistake = parsed_query(CurveQuery, **fixed), ""
    try:
        view = curves(read_model, query)
    except BadRequestError as error:
        query, mistake = query.model_copy(update={"filter": ""}), str(error)
        view = curves(read_model, query)
    smoothing = request.args.get("smoothing", "")
    is_log = request.args.get("log") == "1"
    wanted = query.model_dump(include={"metric", "split", "axis", "models", "filter", "top"})
    figure = figure_url(
        header.name,
        "curves",
        fit=header.fits.chosen,
        **wanted,
        log="1" if is_log else "",
        smoothing=smoothing,
    )
    return {
        "view": view,
        "ranked": restyled(view.curves) if view else (),
        "query": query,
        "mistake": mistake,
        "picked": picked,
        "smoothing": smoothing,
        "is_log": is_log,
        "tops": TOPS,
        "axes": AXES,
        "splits": SPLITS,
        "figure": figure,
    }
