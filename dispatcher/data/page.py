"""Route of the tab Data. Also shows failed rows of the partition in the address, for browsers without scripts.

Reads progress from the event log and live points, failed rows from the shared volume. A child process compares the
columns of a complete data set once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from flask import Blueprint, Response, request
from pydantic import Field

from cerebro.contract.base import Contract
from dispatcher.data.columns import column_rows
from dispatcher.data.failed_rows import UnreadableError, failed_rows
from dispatcher.data.view import CompleteDataset, DataView, complete_dataset, data
from dispatcher.pages.addresses import figure_url
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.read_models.read_model import ReadModel
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_WAIT_S = 0.5
"""Maximum wait for a new summary. After it, the page polls."""


class DataQuery(Contract):
    """Maximum number of columns."""

    columns: int = Field(40, ge=1, le=10_000)


_Found: TypeAlias = "tuple[DataView | None, CompleteDataset | None]"


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""

    summaries = tabs.services.summaries

    @live_route(pages, "/experiments/<name:name>/data", "data")
    def page(name: str) -> Response:
        def finish(header: Header, found: _Found) -> Mapping[str, object]:
            view, dataset = found
            outcome = summaries.find(dataset.plan, dataset.ended, wait_s=_WAIT_S) if dataset else None
            summary = outcome.summary if outcome else None
            return {
                "view": view,
                "figure": figure_url(header.name, "etl"),
                "summary": summary,
                "columns": column_rows(summary, parsed_query(DataQuery).columns) if summary else (),
                "columns_problem": outcome.reason if outcome else "",
                **_failed_rows(tabs, view),
            }

        return tabs.answer(name, "data", "data/data.html", _fill, finish, other_version=summaries.version)


def _fill(read_model: ReadModel, header: Header, now: float) -> _Found:
    return data(read_model, now=now), complete_dataset(read_model)


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
