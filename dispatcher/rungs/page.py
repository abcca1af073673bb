"""The tab of a search: its rungs, who is where, and who was stopped at which value."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from dispatcher.pages.query_parsing import parsed_query
from dispatcher.pages.rendering import live_route
from dispatcher.reading.read_model import ReadModel
from dispatcher.rungs.view import LONGEST, RungsQuery, search
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/search", "search")
    def page(name: str) -> Response:
        return tabs.answer(name, "search", "rungs/rungs.html", _fill)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    asked = parsed_query(RungsQuery)
    return {"view": search(read_model, fit=header.fit, size=asked.size), "most": LONGEST}
