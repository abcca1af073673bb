"""Routes of the tab Logs: newest output, lines after a cursor, whole logs.

The page's script asks for new lines with the cursor of its last answer, so the server keeps no state of followers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, render_template, request, url_for

from cerebro.errors import BadRequestError, NotFoundError
from dispatcher.logs import view as views
from dispatcher.logs.log_reader import Chunk
from dispatcher.logs.terminal import LEVELS
from dispatcher.logs.view import MAX_NEW_LOGS, PAGE, Cursor, LogPageQuery, LogQuery, Sources
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.live_pages import live_route
from dispatcher.pages.queries import parsed_query
from dispatcher.pages.tables import page_of
from dispatcher.read_models.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """Matching attempts according to the event log."""

    query: LogPageQuery
    sources: Sources
    runs: tuple[str, ...]
    workers: tuple[str, ...]
    waits: str


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @live_route(pages, "/experiments/<name:name>/logs", "logs")
    def page(name: str) -> Response:
        def finish(head: Header, found: _Selection) -> Mapping[str, object]:
            return _template_variables(services, head, found)

        query = parsed_query(LogQuery)
        return tabs.answer(
            name, "logs", "logs/logs.html", _fill, finish, other_version=lambda: _sizes(services, name, query)
        )

    @pages.get("/experiments/<name:name>/logs/lines")
    def log_lines(name: str) -> Response:
        """Answer the lines after the cursor `after`, or 204 without new lines."""
        cursor, query = Cursor.parse(request.args.get("after", "")), parsed_query(LogQuery)
        if cursor is None:
            abort(400)
        pending = services.reader.read(name, lambda read_model: views.unread(read_model.state, query, cursor))
        chunks = [services.logs.since(name, source, offset) for source, offset in pending[:MAX_NEW_LOGS]]
        nonempty = sorted((chunk for chunk in chunks if chunk.lines), key=lambda chunk: chunk.source.started)
        if not nonempty:
            return Response(status=204)
        next_cursor = cursor.advanced(
            pending, {chunk.source.key: (chunk.end, chunk.is_end) for chunk in chunks}
        )
        html = render_template("logs/_log.html", name=name, chunks=nonempty, is_news=True)
        return Response(html, headers={"X-Cursor": str(next_cursor)})

    @pages.get("/experiments/<name:name>/logs/file")
    def log_file(name: str) -> Response:
        """Answer the complete log of one attempt."""
        query = parsed_query(LogQuery, model="", worker="")
        sources = services.reader.read(name, lambda read_model: views.sources(read_model.state, query))
        if not query.task or not sources:
            raise NotFoundError(
                f"{name} has no started attempt of {query.task or 'the task: the address does not name it'}"
            )
        path = services.logs.path(name, sources[-1])
        return services.files.download("logs", path, path.rpartition("/")[2])


def _sizes(services: Services, name: str, query: LogQuery) -> tuple[object, ...]:
    """Return sizes of the newest logs that may grow. The event log does not record output."""
    growing = services.reader.read(name, lambda read_model: views.growing(read_model.state, query))
    return tuple((source.key, services.logs.size(name, source)) for source in growing[-PAGE:])


def _fill(read_model: ReadModel, header: Header, now: float) -> _Selection:
    query, state = parsed_query(LogPageQuery), read_model.state
    return _Selection(
        query=query,
        sources=views.sources(state, query),
        runs=tuple(reversed(state.runs)),
        workers=tuple(sorted(state.workers)),
        waits=views.waiting_reason(state, query.task) if query.task else "",
    )


def _template_variables(services: Services, head: Header, found: _Selection) -> Mapping[str, object]:
    page = page_of(found.sources[::-1], found.query.page, PAGE)
    shown: dict[str, object] = {
        "found": found,
        "query": found.query,
        "levels": LEVELS,
        "is_mounted": services.logs.is_mounted,
        "sub_epochs": [(source, services.logs.size(head.name, source)) for source in page.rows],
        "page": page.page,
        "pages": page.pages,
        "chunks": [],
        "hits": None,
        "problem": "",
        "cursor": "",
        "hidden_logs": 0,
        "only": None,
        "follow": "",
    }
    # A fragment contains no lines: the page's script appends them.
    return shown | ({} if is_fragment() else _lines(services, head.name, found))


def _lines(services: Services, name: str, found: _Selection) -> dict[str, object]:
    query, chosen = found.query, found.sources
    if query.is_search:
        try:
            return {"hits": services.logs.search(name, chosen, query)}
        except BadRequestError as error:
            return {"problem": str(error)}
    only = chosen[-1] if query.task and chosen else None
    if only is not None and query.at >= 0:
        chunk = services.logs.around(name, only, query.at)
        return {"chunks": [chunk], "only": only}
    chunks = services.logs.newest(name, chosen)
    return {
        "chunks": chunks,
        "only": only,
        "hidden_logs": len(chosen) - len(chunks),
        "cursor": str(_cursor(services, name, chosen, chunks)),
        "follow": f"{url_for('pages.log_lines', name=name)}?{urlencode(_filter(query))}",
    }


def _cursor(services: Services, name: str, chosen: Sources, chunks: Sequence[Chunk]) -> Cursor:
    ends = {chunk.source.key: chunk.end for chunk in chunks}
    # For a running attempt that is not shown, start at its current end.
    for source in chosen.growing():
        if source.key not in ends:
            ends[source.key] = services.logs.size(name, source) or 0
    return Cursor.from_page(chosen, ends)


def _filter(query: LogQuery) -> dict[str, object]:
    names = ("fit", "task", "attempt", "model", "worker")
    return {name: value for name in names if (value := getattr(query, name))}
