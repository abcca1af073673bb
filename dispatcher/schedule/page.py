"""The schedule of a fit run: sub-epochs over workers as they ran, how close to the bound, and which scheduler chose
them."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from cerebro.scheduling.policies import POLICIES
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.query_parsing import parsed_query
from dispatcher.pages.rendering import live_route
from dispatcher.reading.from_log import made
from dispatcher.reading.read_model import ReadModel
from dispatcher.schedule.sub_epochs import SubEpochQuery, sub_epochs
from dispatcher.schedule.view import schedule
from dispatcher.schedule.window import WindowQuery
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_SUB_EPOCHS = 50
_RULES = {
    "random": "any model on any worker",
    "fifo": "who has waited longest",
    "lrptw": "most work left first",
    "cyclic": "in turn, around the workers",
    "monte-carlo": "the best of many dry runs",
    "promising": "who is expected to be good soonest",
    "hermes": "whose loss fell most lately, as in Hermes",
    "slaq": "whose loss fell most lately, over its largest fall, as in SLAQ",
    "rr": "who was trained least",
}
_POLICIES = {name: _RULES[name] for name in POLICIES}
"""What they do, in a few words; docs/scheduling.md says more."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/schedule", "schedule")
    def page(name: str) -> Response:
        def finish(_: Header, found: Mapping[str, object]) -> Mapping[str, object]:
            return {**found, "sub_epochs": made(found["sub_epochs"], tabs.services.past)}

        return tabs.answer(name, "schedule", "schedule/schedule.html", _fill, finish)


def _fill(read_model: ReadModel, header: Header, now: float) -> Mapping[str, object]:
    model, asked = request.args.get("model", ""), parsed_query(WindowQuery)
    return {
        "view": schedule(read_model, fit=header.fit, now=now),
        "sub_epochs": sub_epochs(
            read_model, parsed_query(SubEpochQuery, run=header.fit, size=_SUB_EPOCHS), now
        ),
        "model": model,
        "policies": _POLICIES,
        "figure": figure_url(
            header.name, "schedule", fit=header.fit, model=model, since=asked.since, until=asked.until
        ),
    }
