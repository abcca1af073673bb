"""The logs page: what attempts printed, newest at the foot, followed while they run; search over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, render_template, request, url_for

from cerebro.errors import BadRequestError, NotFoundError
from dispatcher.logs import view as views
from dispatcher.logs.reading import Chunk
from dispatcher.logs.terminal import LEVELS
from dispatcher.logs.view import MOST_NEW, PAGE, Chosen, Cursor, LogPageQuery, LogQuery
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.query_parsing import parsed_query
from dispatcher.pages.rendering import live_route
from dispatcher.pages.tables import page_of
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What the log of events says about `query`."""

    query: LogPageQuery
    sources: Chosen
    runs: tuple[str, ...]
    workers: tuple[str, ...]
    waits: str


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the routes."""
    services = tabs.services

    @live_route(pages, "/experiments/<name:name>/logs", "logs")
    def page(name: str) -> Response:
        def finish(head: Header, found: _Found) -> Mapping[str, object]:
            return _shown(services, head, found)

        query = parsed_query(LogQuery)
        return tabs.answer(
            name, "logs", "logs/logs.html", _view, finish, beside=lambda: _sizes(services, name, query)
        )

    @pages.get("/experiments/<name:name>/logs/lines")
    def log_lines(name: str) -> Response:
        """What is new behind the cursor `after`: 204 if nothing is."""
        cursor, query = Cursor.parse(request.args.get("after", "")), parsed_query(LogQuery)
        if cursor is None:
            abort(400)
        pending = services.reader.look(name, lambda read_model: views.unread(read_model.state, query, cursor))
        chunks = [services.logs.since(name, source, offset) for source, offset in pending[:MOST_NEW]]
        told = sorted((chunk for chunk in chunks if chunk.lines), key=lambda chunk: chunk.source.started)
        if not told:
            return Response(status=204)
        after = cursor.moved(pending, {chunk.source.key: (chunk.end, chunk.is_end) for chunk in chunks})
        html = render_template("logs/_log.html", name=name, chunks=told, is_news=True)
        return Response(html, headers={"X-Cursor": str(after)})

    @pages.get("/experiments/<name:name>/logs/file")
    def log_file(name: str) -> Response:
        """One attempt's whole log."""
        query = parsed_query(LogQuery, model="", worker="")
        sources = services.reader.look(name, lambda read_model: views.sources(read_model.state, query))
        if not query.task or not sources:
            raise NotFoundError(
                f"{name} has no attempt at {query.task or 'a task without a name'} that has started"
            )
        path = services.logs.path(name, sources[-1])
        return services.files.download("logs", path, path.rpartition("/")[2])


def _sizes(services: Services, name: str, query: LogQuery) -> tuple[object, ...]:
    """Of the newest logs that may grow: they do so without a word in the log of events."""
    growing = services.reader.look(name, lambda read_model: views.growing(read_model.state, query))
    return tuple((source.key, services.logs.size(name, source)) for source in growing[-PAGE:])


def _view(read_model: ReadModel, header: Header, now: float) -> _Found:
    query, state = parsed_query(LogPageQuery), read_model.state
    return _Found(
        query=query,
        sources=views.sources(state, query),
        runs=tuple(reversed(state.runs)),
        workers=tuple(sorted(state.workers)),
        waits=views.waits_for(state, query.task) if query.task else "",
    )


def _shown(services: Services, head: Header, found: _Found) -> Mapping[str, object]:
    page = page_of(found.sources[::-1], found.query.page, PAGE)
    shown: dict[str, object] = {
        "found": found,
        "query": found.query,
        "levels": LEVELS,
        "is_mounted": services.logs.is_mounted,
        "sub_epochs": [(sub_epoch, services.logs.size(head.name, sub_epoch)) for sub_epoch in page.rows],
        "page": page.page,
        "pages": page.pages,
        "chunks": [],
        "hits": None,
        "problem": "",
        "cursor": "",
        "left_out": 0,
        "only": None,
        "follow": "",
    }
    # A fragment leaves lines as they are: the page's script adds to them.
    return shown | ({} if is_fragment() else _lines(services, head.name, found))


def _lines(services: Services, name: str, found: _Found) -> dict[str, object]:
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
        "left_out": len(chosen) - len(chunks),
        "cursor": str(_cursor(services, name, chosen, chunks)),
        "follow": f"{url_for('pages.log_lines', name=name)}?{urlencode(_filter(query))}",
    }


def _cursor(services: Services, name: str, chosen: Chosen, chunks: Sequence[Chunk]) -> Cursor:
    ends = {chunk.source.key: chunk.end for chunk in chunks}
    # Of what runs but is not shown only what comes from now on is told.
    for source in chosen.growing():
        if source.key not in ends:
            ends[source.key] = services.logs.size(name, source) or 0
    return Cursor.behind(chosen, ends)


def _filter(query: LogQuery) -> dict[str, object]:
    names = ("fit", "task", "attempt", "model", "worker")
    return {name: value for name in names if (value := getattr(query, name))}
