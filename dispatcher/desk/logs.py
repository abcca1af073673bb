"""The logs page: what attempts printed, newest at the foot, followed while they run; search over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, render_template, request, url_for

from cerebro.errors import BadRequestError, NotFoundError
from dispatcher.desk.tabs import tab_page
from dispatcher.followed import Followed
from dispatcher.log_reading import Chunk, Hits
from dispatcher.pages.addresses import is_fragment
from dispatcher.pages.rendering import live_route
from dispatcher.services import Services
from dispatcher.views import logs as views
from dispatcher.views.header import Header
from dispatcher.views.logs import PAGE, Cursor, LogQuery, Source
from dispatcher.views.terminal import LEVELS

MOST_NEW = 60
"""Logs that one answer to a follower reads of; the next ones come with the next answer."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What the log of events says about `query`."""

    query: LogQuery
    sources: tuple[Source, ...]
    run: str
    runs: tuple[str, ...]
    workers: tuple[str, ...]
    waits: str


def add(blueprint: Blueprint, services: Services) -> None:
    """Add the routes."""

    @live_route(blueprint, "/experiments/<name:name>/logs", "logs")
    def page(name: str) -> Response:
        def build() -> str:
            return tab_page(services, name, "logs", _look, lambda head, found: _shown(services, head, found))

        if not is_fragment():
            return Response(build())
        version = (*services.reader.version(name), request.full_path, services.reader.outage)
        return services.answers.answer(version, build)

    @blueprint.get("/experiments/<name:name>/logs/lines")
    def log_lines(name: str) -> Response:
        """What is new behind the cursor `after`: 204 if nothing is."""
        cursor = Cursor.parse(request.args.get("after", ""))
        if cursor is None:
            abort(400)
        found = services.reader.look(name, _look)
        chunks, ends = [], dict(cursor.offsets)
        for source, offset in cursor.unread(found.sources)[:MOST_NEW]:
            chunk = services.logs.since(name, source, offset)
            ends[source.key] = max(offset, chunk.end)
            if chunk.lines:
                chunks.append(chunk)
        cursor = Cursor.behind(found.sources, ends)
        if not chunks:
            return Response(status=204)
        html = render_template("_log.html", name=name, chunks=chunks, is_news=True)
        return Response(html, headers={"X-Cursor": str(cursor)})

    @blueprint.get("/experiments/<name:name>/logs/file")
    def log_file(name: str) -> Response:
        """One attempt's whole log."""
        query = replace(LogQuery.parse(request.args), model="", worker="")
        sources = services.reader.look(name, lambda followed: views.sources(followed.state, query))
        if not query.task or not sources:
            raise NotFoundError(
                f"{name} has no attempt at {query.task or 'a task without a name'} that has started"
            )
        path = services.logs.path(name, sources[-1])
        return services.files.download("logs", path, path.rpartition("/")[2])


def _look(followed: Followed) -> _Found:
    query, state = LogQuery.parse(request.args), followed.state
    run = views.chosen_run(state, query.task.partition("/")[0] or query.fit)
    return _Found(
        query=query,
        sources=views.sources(state, query),
        run=run.id if run else "",
        runs=tuple(reversed(state.runs)),
        workers=tuple(sorted(state.workers)),
        waits=views.waits_for(state, query.task) if query.task else "",
    )


def _shown(services: Services, head: Header, found: _Found) -> Mapping[str, object]:
    newest_first = found.sources[::-1]
    pages = max(1, -(-len(newest_first) // PAGE))
    page = min(found.query.page, pages)
    units = newest_first[(page - 1) * PAGE : page * PAGE]
    shown: dict[str, object] = {
        "found": found,
        "query": found.query,
        "levels": LEVELS,
        "is_mounted": services.logs.is_mounted,
        "units": [(unit, services.logs.size(head.name, unit)) for unit in units],
        "page": page,
        "pages": pages,
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
        return _searched(services, name, chosen, query)
    only = chosen[-1] if query.task and chosen else None
    if only is not None and query.at >= 0:
        chunk = services.logs.around(name, only, query.at)
        return {"chunks": [chunk], "only": only, "cursor": ""}
    chunks = services.logs.newest(name, chosen)
    return {
        "chunks": chunks,
        "only": only,
        "left_out": len(chosen) - len(chunks),
        "cursor": str(_cursor(services, name, chosen, chunks)),
        "follow": f"{url_for('desk.log_lines', name=name)}?{urlencode(_filter(query))}",
    }


def _cursor(services: Services, name: str, chosen: Sequence[Source], chunks: Sequence[Chunk]) -> Cursor:
    ends = {chunk.source.key: chunk.end for chunk in chunks}
    # Of what runs but is not shown only what comes from now on is told.
    for source in reversed(chosen):
        if source.is_open and len(ends) < MOST_NEW:
            ends.setdefault(source.key, services.logs.size(name, source) or 0)
    return Cursor.behind(chosen, ends)


def _filter(query: LogQuery) -> dict[str, object]:
    names = ("fit", "task", "attempt", "model", "worker")
    return {name: value for name in names if (value := getattr(query, name))}


def _searched(services: Services, name: str, chosen: Sequence[Source], query: LogQuery) -> dict[str, object]:
    try:
        hits: Hits | None = services.logs.search(name, chosen, query)
    except BadRequestError as error:
        return {"hits": None, "problem": str(error)}
    return {"hits": hits}
