"""Route of the tab Schedule: quality, task list and form. The browser loads the chart from the read API."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.scheduling.policies import POLICIES
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.from_log import resolve
from dispatcher.read_models.read_model import ReadModel
from dispatcher.schedule.tasks import TaskQuery, list_tasks
from dispatcher.schedule.view import schedule
from dispatcher.schedule.window import WindowQuery
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_TASKS_PER_PAGE = 50
_RULES = {
    "random": "any model on any worker",
    "fifo": "longest waiting model first",
    "lrptw": "most remaining work first",
    "cyclic": "round robin over the workers",
    "monte-carlo": "best of many simulated schedules",
    "promising": "model that is expected to be good soonest",
    "hermes": "largest recent loss reduction, as in Hermes",
    "slaq": "largest recent loss reduction relative to its maximum, as in SLAQ",
    "rr": "least trained model first",
}
_POLICIES = {name: _RULES[name] for name in POLICIES}
"""Policy -> short description. docs/scheduling.md explains them."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/schedule", "schedule")
    def page(name: str) -> Response:
        def finish(_: Header, found: Mapping[str, object]) -> Mapping[str, object]:
            return {**found, "sub_epochs": resolve(found["sub_epochs"], tabs.services.past)}

        return tabs.answer(name, "schedule", "schedule/schedule.html", _fill, finish)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    model, query = request.args.get("model", ""), parsed_query(WindowQuery)
    return {
        "view": schedule(read_model, fit=header.fits.chosen, now=now),
        "sub_epochs": list_tasks(
            read_model, parsed_query(TaskQuery, run=header.fits.chosen, size=_TASKS_PER_PAGE), now
        ),
        "model": model,
        "policies": _POLICIES,
        "figure": figure_url(
            header.name, "schedule", fit=header.fits.chosen, model=model, since=query.since, until=query.until
        ),
    }
