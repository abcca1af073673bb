"""The code page: the source of each spec as it ran, what each run was asked for, and the archive's files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from flask import Blueprint, Response, request

from cerebro.contract.records import CodeRecord, ExperimentRecord
from cerebro.errors import NotFoundError
from cerebro.usercode.archive import ArchiveListing, inspect
from dispatcher.code import view as views
from dispatcher.pages.rendering import live_route
from dispatcher.reading.read_model import ReadModel
from dispatcher.services import Services
from dispatcher.start.page import FILES_SHOWN
from dispatcher.tabs.header import Header
from dispatcher.tabs.tabs import Tabs

SPECS_SHOWN = 20
"""Pieces of user code that one page names, newest first; it shows one."""
_KEPT = 64

T = TypeVar("T")
_Found = tuple[ExperimentRecord, dict[str, tuple[str, ...]], tuple[views.RequestView, ...]]


def register(pages: Blueprint, tabs: Tabs) -> None:
    """Add the route."""
    library = _Library(tabs.services)

    @live_route(pages, "/experiments/<name:name>/code", "code")
    def page(name: str) -> Response:
        return tabs.answer(name, "code", "code/code.html", _look, library.shown)


def _look(read_model: ReadModel, header: Header, now: float) -> _Found:
    return read_model.record, views.hashes(read_model.state), views.requests(read_model.state)


class _Library:
    """Code and archives of the store: what has a hash for a name never changes, so it is asked for once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._codes: OrderedDict[str, CodeRecord] = OrderedDict()
        self._listings: OrderedDict[str, ArchiveListing] = OrderedDict()

    def shown(self, head: Header, found: _Found) -> Mapping[str, object]:
        """What the template shows."""
        record, used, asked = found
        used = dict(islice(used.items(), SPECS_SHOWN))
        chosen = views.chosen(used, request.args.get("spec", ""))
        code = self._code(chosen) if chosen else None
        listing = self._listing(record.archive, record.name) if record.archive else None
        view = views.code(record, used=used, chosen=chosen, code=code, asked=asked, listing=listing)
        return {"view": view, "files_shown": FILES_SHOWN}

    def _code(self, sha256: str) -> CodeRecord | None:
        def ask() -> CodeRecord:
            code = self._services.store.code(sha256)
            return code.model_copy(update={"encoded": ""})  # up to 32 MiB that no page shows

        try:
            return _kept(self._codes, sha256, lambda: self._services.reader.ask(ask))
        except NotFoundError:
            return None

    def _listing(self, sha256: str, experiment: str) -> ArchiveListing:
        def ask() -> ArchiveListing:
            content = self._services.reader.ask(lambda: self._services.store.archive(sha256))
            return inspect(content, name=f"the archive of {experiment}")

        return _kept(self._listings, sha256, ask)


def _kept(kept: OrderedDict[str, T], key: str, make: Callable[[], T]) -> T:
    found = kept.get(key)
    if found is None:
        found = kept[key] = make()
        while len(kept) > _KEPT:
            kept.popitem(last=False)
    return found
