"""What happened to an experiment: its runs, and who asked for what."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response

from dispatcher.followed import Followed
from dispatcher.pages.addresses import page_number
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tabs import Tabs
from dispatcher.views.actions import ActionQuery, actions
from dispatcher.views.header import Header
from dispatcher.views.runs import run_row


def add(blueprint: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(blueprint, "/experiments/<name:name>/history", "history")
    def page(name: str) -> Response:
        return tabs.answer(name, "history", "history.html", _fill)


def _fill(followed: Followed, header: Header, now: float) -> Mapping[str, object]:
    return {
        "view": actions(followed.state, ActionQuery(page=page_number())),
        "runs": tuple(run_row(followed, run) for run in reversed(followed.state.runs.values())),
        "record": followed.record,
    }
