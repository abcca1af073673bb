"""The list of experiments, an experiment's page, its code; and the fragments that refresh the first two."""

from __future__ import annotations

from functools import partial

from flask import Flask, render_template, request
from flask.typing import ResponseReturnValue
from werkzeug.routing import BaseConverter

from cerebro.archive import inspect
from dispatcher import overview
from dispatcher.listing import Lister, Listing
from dispatcher.overview import ExperimentView
from dispatcher.reading import Reader
from dispatcher.start import FILES_SHOWN

READING_S = 2.0
"""How long a page may read a log it does not know yet."""


class NameConverter(BaseConverter):
    """The contract's `Name`: nothing else of a URL reaches the store."""

    regex = r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?"
    part_isolating = True


def register(app: Flask, reader: Reader) -> None:
    """Add the routes."""
    lister = Lister(reader)

    @app.get("/experiments")
    def experiments() -> ResponseReturnValue:
        return render_template("experiments.html", listing=_listing(lister))

    @app.get("/fragments/experiments")
    def experiments_fragment() -> ResponseReturnValue:
        return render_template("_experiments.html", listing=_listing(lister))

    @app.get("/experiments/<name:name>")
    def experiment(name: str) -> ResponseReturnValue:
        return render_template("experiment.html", view=_view(reader, name))

    @app.get("/fragments/experiments/<name:name>")
    def experiment_fragment(name: str) -> ResponseReturnValue:
        return render_template("_experiment.html", view=_view(reader, name))

    @app.get("/experiments/<name:name>/code")
    def code(name: str) -> ResponseReturnValue:
        record = reader.record(name)
        sha256 = record.archive
        content = reader.ask(lambda: reader.store.archive(sha256)) if sha256 else None
        listing = inspect(content, name=f"the archive of {name}") if content else None
        return render_template("code.html", record=record, listing=listing, files_shown=FILES_SHOWN)


def _listing(lister: Lister) -> Listing:
    return lister.listing(request.args.get("q", "")[:100], _page())


def _view(reader: Reader, name: str) -> ExperimentView:
    record = reader.record(name)
    build = partial(
        overview.view,
        record=record,
        statuses=reader.workers(),
        now=reader.now(),
        fit=request.args.get("fit", ""),
        page=_page(),
    )
    return reader.folded(record, build, patience_s=READING_S)


def _page() -> int:
    page = request.args.get("page", "1")
    return int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1
