"""The WSGI application: puts guard, pages and problems together. No globals, no effects at import."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flask import Flask, g, jsonify, redirect, url_for
from flask.typing import ResponseReturnValue

from dispatcher import api, desk, files, gateway, pages, palette, plotly, problems, sign_in, start
from dispatcher.attempts import Attempts
from dispatcher.catalogue import Catalogue
from dispatcher.cluster import Cluster
from dispatcher.conditional import Answers
from dispatcher.disks import Disks
from dispatcher.formats import FILTERS, percent
from dispatcher.guard import Guard
from dispatcher.log_reading import LogReader
from dispatcher.metrics import Metrics
from dispatcher.pages.addresses import NameConverter
from dispatcher.reading import Reader
from dispatcher.repeats import Repeats
from dispatcher.services import Services
from dispatcher.settings import Settings
from dispatcher.statics import Statics
from dispatcher.store import Store

_PARTS: tuple[Callable[[Flask, Services], None], ...] = (
    start.register,
    pages.register,
    desk.register,
    plotly.register,
    palette.register,
    api.register,
)
"""What has pages or routes of its own."""


def create_app(
    settings: Settings,
    store: Store,
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Flask:
    """The application over `store`, which all its threads share."""
    app = Flask("dispatcher")
    app.url_map.converters["name"] = NameConverter
    app.url_map.merge_slashes = False  # an address is a page or is none
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    reader = Reader(store, clock=clock, monotonic=monotonic)
    metrics = Metrics(monotonic, lambda: reader.outage is not None)
    disks = Disks(settings.volumes, clock)
    services = Services(
        settings=settings,
        store=store,
        reader=reader,
        catalogue=Catalogue(reader),
        answers=Answers(),
        cluster=Cluster(reader, disks),
        disks=disks,
        files=files.Files(settings.volumes, settings.sent_files),
        logs=LogReader(settings.volumes),
        metrics=metrics,
        clock=clock,
        monotonic=monotonic,
    )
    metrics.install(app)
    app.extensions["cerebro-background"] = reader.background  # whoever serves the app starts it
    app.extensions["cerebro-metrics"] = metrics  # for the port that only the cluster reaches
    app.extensions["cerebro-disks"] = services.disks
    guard = Guard(settings, Attempts(monotonic))
    guard.install(app)
    _give_templates(app, services)
    _add_probes(app)
    sign_in.register(app, services, guard)
    for register in _PARTS:
        register(app, services)
    problems.register(app, reader)
    gateway.Gateway(settings).install(app)
    services.files.install(app)
    app.wsgi_app = Repeats(app.wsgi_app, services.answers, metrics, monotonic)  # type: ignore[method-assign]
    return app


def _give_templates(app: Flask, services: Services) -> None:
    statics = Statics(Path(str(app.static_folder)))
    statics.install(app)

    @app.context_processor
    def shared() -> dict[str, object]:
        return {
            "settings": services.settings,
            "outage": services.reader.outage,
            "now": services.clock(),
            "percent": percent,
            "is_signed_in": g.get("identity") is not None,
            "is_named_by_proxy": g.get("identity") == "proxy",
            "who": g.get("name", ""),
            "asset": statics.address,
        }


def _add_probes(app: Flask) -> None:
    @app.get("/health")
    def health() -> ResponseReturnValue:
        # What tells a client that this is not the store itself, and where the store's API is.
        return jsonify(status="ok", api=gateway.PREFIX)

    @app.get("/live")
    def live() -> ResponseReturnValue:
        return jsonify(status="ok")

    @app.get("/")
    def home() -> ResponseReturnValue:
        return redirect(url_for("pages.experiments"), 303)
