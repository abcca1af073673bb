"""Route of the tab History: runs, commands and the experiment's record, from the event log."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from dispatcher.history.view import CommandQuery, commands
from dispatcher.pages.addresses import page_number
from dispatcher.pages.live_pages import live_route
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.runs import run_row
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/history", "history")
    def page(name: str) -> Response:
        return tabs.answer(name, "history", "history/history.html", _fill)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    return {
        "view": commands(read_model.state, CommandQuery(page=page_number())),
        "runs": tuple(run_row(read_model, run) for run in reversed(read_model.state.runs.values())),
        "record": read_model.record,
    }
