"""Route of the tab Data. Also shows failed rows of the partition in the address, for browsers without scripts.

Reads progress from the event log and live points, failed rows from the shared volume.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.data.failed_rows import UnreadableError, failed_rows
from dispatcher.data.view import DataView, data
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/data", "data")
    def page(name: str) -> Response:
        def finish(header: Header, view: DataView | None) -> Mapping[str, object]:
            return {"view": view, "figure": figure_url(header.name, "etl"), **_failed_rows(tabs, view)}

        return tabs.answer(name, "data", "data/data.html", _fill, finish)


def _fill(read_model: ReadModel, header: Header, now: float) -> DataView | None:
    return data(read_model, now=now)


def _failed_rows(tabs: Tabs, view: DataView | None) -> Mapping[str, object]:
    split, number = request.args.get("split", ""), request.args.get("partition", "")
    known = (
        {(row.split, str(part.partition)): part for row in view.splits for part in row.parts} if view else {}
    )
    part = known.get((split, number))
    if view is None or part is None:
        return {}
    try:
        found = failed_rows(tabs.services.settings.volumes, view.dataset, split, part.partition)
    except UnreadableError as error:
        return {"problem": str(error)}
    return {"failed_rows": found}
