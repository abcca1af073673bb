"""Learning curves: live, of the best models or of chosen ones, over epochs, rows or time."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.analysis import Curve
from cerebro.errors import BadRequestError
from dispatcher.followed import Followed
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.asking import asked
from dispatcher.pages.models import picked_models
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tabs import Tabs
from dispatcher.views.curves import CurveQuery, CurvesView, curves
from dispatcher.views.header import Header

TOPS = (1, 5, 10, 20, 50, 100)
AXES = (("epoch", "epochs"), ("row", "rows"), ("time", "time"))
SPLITS = (("", "as ranked"), ("valid", "validation"), ("train", "training"), ("live", "within units"))
DEFAULT_TOP = 10


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/curves", "curves")
    def page(name: str) -> Response:
        return tabs.answer(name, "curves", "curves.html", _fill)


def _fill(followed: Followed, header: Header, now: float) -> Mapping[str, object]:
    picked = picked_models()
    fixed: dict[str, object] = {"models": ",".join(picked)}
    if "top" not in request.args:
        fixed["top"] = DEFAULT_TOP
    query, mistake = asked(CurveQuery, **fixed), ""
    try:
        view = curves(followed, query)
    except BadRequestError as error:
        query, mistake = query.model_copy(update={"filter": ""}), str(error)
        view = curves(followed, query)
    smoothing = request.args.get("smoothing", "")
    is_log = request.args.get("log") == "1"
    wanted = query.model_dump(include={"metric", "split", "axis", "models", "filter", "top"})
    figure = figure_url(
        header.name, "curves", fit=header.fit, **wanted, log="1" if is_log else "", smoothing=smoothing
    )
    return {
        "view": view,
        "ranked": _ranked(view) if view else (),
        "mode": _mode(view) if view else "",
        "asked": query,
        "mistake": mistake,
        "picked": picked,
        "smoothing": smoothing,
        "is_log": is_log,
        "tops": TOPS,
        "axes": AXES,
        "splits": SPLITS,
        "figure": figure,
    }


def _mode(view: CurvesView) -> str:
    """Which direction of the shown metric is better. Of one that models are not ranked by the log does not say: less of
    a loss or an error is."""
    if view.is_objective:
        return view.mode
    name = view.metric.casefold()
    return "min" if any(word in name for word in ("loss", "error", "perplexity")) else "max"


def _ranked(view: CurvesView) -> list[tuple[Curve, float | None]]:
    """Curves and the best value of each, best first; those without a value last."""
    mode = _mode(view)
    choose = max if mode == "max" else min
    sign = -1 if mode == "max" else 1
    found = [(curve, choose(curve.y) if curve.y else None) for curve in view.curves]
    return sorted(found, key=lambda pair: (pair[1] is None, sign * (pair[1] or 0.0)))
