"""Route of the tab Overview. It reads the log, workers' statuses and the check for missing files."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.overview.view import overview
from dispatcher.pages.live_pages import live_route
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>", "experiment")
    def experiment(name: str) -> Response:
        statuses = tabs.services.reader.workers()

        def fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
            view = overview(read_model, now=now, statuses=statuses, fit=request.args.get("fit", ""))
            return {"view": view, "record": read_model.record}

        lost = tabs.services.lost

        def finish(header: Header, shown: Mapping[str, object]) -> Mapping[str, object]:
            return {**shown, "lost": lost.newest(name)}

        return tabs.answer(
            name, "overview", "overview/overview.html", fill, finish, other_version=lambda: lost.newest(name)
        )
