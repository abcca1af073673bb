"""The code page: the source of each spec as it ran, what each run was asked for, and the archive's files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice

from flask import Blueprint, Response, request

from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.errors import NotFoundError
from cerebro.usercode.archive import ArchiveListing, inspect
from dispatcher.code import view as views
from dispatcher.pages.rendering import live_route
from dispatcher.reading.read_model import ReadModel
from dispatcher.start.page import FILES_SHOWN
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

SPECS_SHOWN = 20
"""Pieces of user code that one page names, newest first; it shows one."""
_KEPT = 64

_Found = tuple[ExperimentRecord, dict[str, tuple[str, ...]], tuple[views.RequestView, ...]]


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    reader, store = tabs.services.reader, tabs.services.store

    # What has a hash for a name never changes, so it is asked for once.
    @lru_cache(_KEPT)
    def stored_code(sha256: str) -> CodeRecord:
        code = reader.ask(lambda: store.code(sha256))
        return code.model_copy(update={"encoded": ""})  # up to 32 MiB that no page shows

    @lru_cache(_KEPT)
    def stored_archive(sha256: str) -> ArchiveListing:
        return inspect(reader.ask(lambda: store.archive(sha256)), name="the archive of this experiment")

    def finish(_: Header, found: _Found) -> Mapping[str, object]:
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
        return tabs.answer(name, "code", "code/code.html", _look, finish)


def _look(read_model: ReadModel, header: Header, now: float) -> _Found:
    return read_model.record, views.hashes(read_model.state), views.requests(read_model.state)
