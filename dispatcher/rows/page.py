"""Routes of the page Rows and of its thumbnails. A child process selects the rows once."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, abort

from cerebro.figures.ranking.rows import RowsRequest
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.ranking.view import Choice
from dispatcher.read_models.read_model import ReadModel
from dispatcher.rows.view import RowsQuery, choose_rows, rows_view
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

_WAIT_S = 0.2
"""Maximum wait for new rows. For others, the page polls."""
_MAX_OFFERED = 200
"""Maximum number of models in each list of the form."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=86400, immutable",
    "Content-Disposition": "inline",
}
"""Headers of a thumbnail: opened alone, it can load and run nothing. Its name contains the hash of its content."""


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    rankings = tabs.services.rankings

    def find(read_model: ReadModel, header: Header, now: float) -> tuple[RowsQuery, Choice[RowsRequest]]:
        query = parsed_query(RowsQuery)
        return query, choose_rows(read_model, query)

    def finish(header: Header, found: tuple[RowsQuery, Choice[RowsRequest]]) -> Mapping[str, object]:
        query, choice = found
        outcome = rankings.find(choice.request, choice.created, wait_s=_WAIT_S) if choice.request else None
        view = rows_view(choice, outcome)
        offered = view.rows.all_models[:_MAX_OFFERED] if view.rows else ()
        return {
            "view": view,
            "runs": choice.runs,
            "query": query,
            "metric": choice.request.metric if choice.request else query.metric,
            "offered": tuple(dict.fromkeys((*offered, *(view.rows.models[:2] if view.rows else ())))),
        }

    @live_route(pages, "/experiments/<name:name>/rows", "rows")
    def page(name: str) -> Response:
        return tabs.answer(name, "rows", "rows/rows.html", find, finish, other_version=rankings.version)

    @pages.get("/experiments/<name:name>/rows/thumbnails/<image>", endpoint="thumbnail")
    def thumbnail(name: str, image: str) -> Response:
        created = tabs.services.reader.read(name, lambda read_model: read_model.record.created)
        found = rankings.thumbnail(image, created)
        if found is None:
            abort(404)
        return Response(found.content, mimetype=found.kind, headers=_HEADERS)
