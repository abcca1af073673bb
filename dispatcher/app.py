"""The WSGI application: puts guard, pages and problems together. No globals, no effects at import."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from flask import Flask, g, jsonify, redirect, url_for
from flask.typing import ResponseReturnValue

from dispatcher import experiments, files, gateway, problems, sign_in, start
from dispatcher.attempts import Attempts
from dispatcher.formats import FILTERS, percent
from dispatcher.guard import Guard
from dispatcher.reading import Reader
from dispatcher.settings import Settings
from dispatcher.store import Store

_A_DAY_S = 86_400


def create_app(
    settings: Settings,
    store: Store,
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Flask:
    """The application over `store`, which all its threads share."""
    app = Flask("dispatcher")
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = _A_DAY_S
    app.url_map.converters["name"] = experiments.NameConverter
    app.url_map.merge_slashes = False  # an address is a page or is none
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    reader = Reader(store, clock=clock, monotonic=monotonic)
    guard = Guard(settings, Attempts(monotonic))
    guard.install(app)
    versions = {path.name: _version(path) for path in Path(str(app.static_folder)).iterdir()}

    @app.context_processor
    def shared() -> dict[str, object]:
        return {
            "settings": settings,
            "outage": reader.outage,
            "now": clock(),
            "percent": percent,
            "is_signed_in": g.get("identity") is not None,
            "asset": lambda name: url_for("static", filename=name, v=versions[name]),
        }

    @app.get("/health")
    def health() -> ResponseReturnValue:
        # What tells a client that this is not the store itself, and where the store's API is.
        return jsonify(status="ok", api=gateway.PREFIX)

    @app.get("/live")
    def live() -> ResponseReturnValue:
        return jsonify(status="ok")

    @app.get("/")
    def home() -> ResponseReturnValue:
        return redirect(url_for("experiments"), 303)

    sign_in.register(app, guard, reader)
    start.register(app, reader)
    experiments.register(app, reader)
    problems.register(app)
    gateway.Gateway(settings).install(app)
    files.Files(settings.volumes, settings.sent_files).install(app)
    return app


def _version(path: Path) -> str:
    # In the address of the file, so that browsers may keep it and still see the next release's at once.
    return sha256(path.read_bytes()).hexdigest()[:12]
