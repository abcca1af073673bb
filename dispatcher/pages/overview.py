"""An experiment's first tab: the answer, what runs now, how fast, what failed and why."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.followed import Followed
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tabs import Tabs
from dispatcher.views.header import Header
from dispatcher.views.overview import overview


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>", "experiment")
    def experiment(name: str) -> Response:
        statuses = tabs.services.reader.workers()

        def fill(followed: Followed, header: Header, now: float) -> Mapping[str, object]:
            view = overview(followed, now=now, statuses=statuses, fit=request.args.get("fit", ""))
            return {"view": view, "record": followed.record}

        return tabs.answer(name, "overview", "overview.html", fill)
