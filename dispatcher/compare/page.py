"""Route of the page that compares models of any experiments."""

from __future__ import annotations

from flask import Blueprint, Response, request

from cerebro.state.reports.state_words import IN_PROGRESS
from dispatcher.compare.view import CompareQuery, CompareView, compare, compared_version
from dispatcher.models.comparison import MAX_MODELS
from dispatcher.pages.addresses import is_fragment, parameter, views_url
from dispatcher.pages.live_pages import live_route, render
from dispatcher.pages.queries import parsed_query
from dispatcher.tabs.tabs import Tabs

AXES = {"epoch": "epochs", "row": "rows", "time": "time"}
"""`cerebro.figures.Axis` -> word on the page."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    reader = tabs.services.reader

    @live_route(pages, "/compare", "compare")
    def page() -> Response:
        query = parsed_query(CompareQuery)
        if not is_fragment():
            return Response(_page(compare(reader, query)))
        version = compared_version(reader, query.pick)
        return tabs.services.answers.answer(version, lambda: _page(compare(reader, query)))


def _page(view: CompareView) -> str:
    axis = request.args.get("axis", "")
    axis = axis if axis in AXES else "epoch"
    is_log = "1" if request.args.get("log") == "1" else ""
    pick = ",".join([*(each.reference for each in view.models), *(name for name, _ in view.missing)])
    return render(
        "compare/compare.html",
        title="Compare models",
        is_live=not view.is_complete or any(each.summary.state in IN_PROGRESS for each in view.models),
        view=view,
        pick=pick,
        without=lambda gone: ",".join(name for name in pick.split(",") if name != gone),
        differences=request.args.get("all") != "1",
        axes=AXES,
        axis=axis,
        is_log=is_log,
        figure=views_url("compare/curves", pick=pick, metric=parameter("metric"), axis=axis, log=is_log),
        most=MAX_MODELS,
    )
