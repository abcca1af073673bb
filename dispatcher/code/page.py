"""Route of the tab Code. Loads code records and archives from the store, and caches the newest 64 of each.

Nothing is executed or unpacked: the page shows source text and the names of files in an archive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice

from flask import Blueprint, Response, request

from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.errors import NotFoundError
from cerebro.usercode.archive import ArchiveListing, inspect
from dispatcher.code import view as views
from dispatcher.pages.live_pages import live_route
from dispatcher.read_models.read_model import ReadModel
from dispatcher.start.page import FILES_SHOWN
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

SPECS_SHOWN = 20
"""Maximum number of code versions to list, newest first. The page shows the source of one."""
_CACHE_SIZE = 64

_Content = tuple[ExperimentRecord, dict[str, tuple[str, ...]], tuple[views.RequestView, ...]]


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    reader, store = tabs.services.reader, tabs.services.store

    # Cache by hash: the content of a hash never changes.
    @lru_cache(_CACHE_SIZE)
    def stored_code(sha256: str) -> CodeRecord:
        code = reader.call(lambda: store.code(sha256))
        return code.model_copy(update={"encoded": ""})  # drop up to 32 MiB that no page shows

    @lru_cache(_CACHE_SIZE)
    def stored_archive(sha256: str) -> ArchiveListing:
        return inspect(reader.call(lambda: store.archive(sha256)), name="the archive of this experiment")

    def finish(_: Header, found: _Content) -> Mapping[str, object]:
        record, used, requests = found
        used = dict(islice(used.items(), SPECS_SHOWN))
        chosen = views.chosen(used, request.args.get("spec", ""))
        try:
            code = stored_code(chosen) if chosen else None
        except NotFoundError:
            code = None
        view = views.CodeView(
            specs=used,
            chosen=views.spec(chosen, used[chosen], code) if chosen else None,
            requests=requests,
            archive=record.archive or "",
            listing=stored_archive(record.archive) if record.archive else None,
            locators=views.as_json(record.locators.model_dump(mode="json", exclude_none=True)),
        )
        return {"view": view, "files_shown": FILES_SHOWN}

    @live_route(pages, "/experiments/<name:name>/code", "code")
    def page(name: str) -> Response:
        return tabs.answer(name, "code", "code/code.html", _fill, finish)


def _fill(read_model: ReadModel, header: Header, now: float) -> _Content:
    return read_model.record, views.hashes(read_model.state), views.requests(read_model.state)
