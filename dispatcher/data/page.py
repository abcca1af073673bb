"""Preprocessing: per split and worker, rows in = rows out + rows failed, and which rows failed and why."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from dispatcher.data.failed_rows import UnreadableError, failed_rows
from dispatcher.data.view import DataView, data
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.rendering import live_route
from dispatcher.reading.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    @live_route(pages, "/experiments/<name:name>/data", "data")
    def page(name: str) -> Response:
        def finish(header: Header, view: DataView | None) -> Mapping[str, object]:
            return {"view": view, "figure": figure_url(header.name, "etl"), **_left_out(tabs, view)}

        return tabs.answer(name, "data", "data/data.html", _look, finish)


def _look(read_model: ReadModel, header: Header, now: float) -> DataView | None:
    return data(read_model, now=now)


def _left_out(tabs: Tabs, view: DataView | None) -> Mapping[str, object]:
    """The rows that failed in the partition that the address names, for readers without scripts."""
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
    return {"left_out": found}
