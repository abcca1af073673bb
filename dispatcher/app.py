"""The WSGI application: creates shared objects and registers all routes. No globals, no effects at import.

`__main__.main` serves the result of `create_app`; tests call it with other stores and clocks. It starts no thread and
does not call the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flask import Blueprint, Flask, g, jsonify, redirect, url_for
from flask.typing import ResponseReturnValue

from cerebro.errors import CerebroError
from cerebro.state.log_pages import LogPages
from dispatcher.access import rights, sign_in
from dispatcher.access.guard import Guard
from dispatcher.access.identities import FRESH_S, Identities
from dispatcher.access.oidc import IdTokens
from dispatcher.access.sessions import Sessions
from dispatcher.access.sign_in_limit import SignInLimiter
from dispatcher.account import page as account
from dispatcher.analysis import page as analysis
from dispatcher.api import files, gateway
from dispatcher.api import views as api
from dispatcher.checkpoints import page as checkpoints
from dispatcher.checkpoints.lost import LostFiles
from dispatcher.cluster import page as cluster
from dispatcher.cluster.disks import Disks
from dispatcher.cluster.snapshot import Cluster
from dispatcher.code import page as code
from dispatcher.commands import page as commands
from dispatcher.commands import tags
from dispatcher.compare import page as compare
from dispatcher.curves import page as curves
from dispatcher.data import page as data
from dispatcher.data.summaries import Summaries
from dispatcher.documentation import page as documentation
from dispatcher.experiments import page as experiments
from dispatcher.experiments.catalogue import Catalogue
from dispatcher.history import page as history
from dispatcher.logs import page as logs
from dispatcher.logs import stacks
from dispatcher.logs.log_reader import LogReader
from dispatcher.metrics import Metrics
from dispatcher.model_forms import page as model_forms
from dispatcher.models import model_page
from dispatcher.models import page as models
from dispatcher.notifications import page as notifications
from dispatcher.overview import page as overview
from dispatcher.overview import report
from dispatcher.pages import live_pages, problems
from dispatcher.pages.addresses import NameConverter
from dispatcher.pages.answers import Answers
from dispatcher.pages.formats import FILTERS, percent
from dispatcher.pages.poll_cache import TRUSTED_S, PollCache
from dispatcher.pages.statics import Statics, plotly
from dispatcher.ranking import page as ranking
from dispatcher.ranking.rankings import Rankings
from dispatcher.read_models.from_log import PastStore
from dispatcher.read_models.reader import Reader
from dispatcher.read_models.store import Store
from dispatcher.registry import page as registry
from dispatcher.rows import page as rows
from dispatcher.rungs import page as rungs
from dispatcher.schedule import page as schedule
from dispatcher.services import Services
from dispatcher.settings import Settings
from dispatcher.start import page as start
from dispatcher.tabs.tabs import Tabs

_log = logging.getLogger(__name__)

_PAGES = (
    *(experiments, commands, tags, model_forms, cluster, account),
    *(
        overview,
        models,
        rungs,
        ranking,
        rows,
        model_page,
        curves,
        analysis,
        schedule,
        data,
        logs,
        stacks,
        code,
        checkpoints,
        history,
        report,
        registry,
        notifications,
        compare,
    ),
)
"""Features with pages, in the blueprint ``pages``."""
_PARTS: tuple[Callable[[Flask, Services], None], ...] = (
    start.register,
    api.register,
    documentation.register,
)
"""Further routes."""


def create_app(
    settings: Settings,
    store: Store,
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Flask:
    """Create the application over `store`, which all threads share."""
    # Templates and static files are next to the routes.
    app = Flask("dispatcher", template_folder=".", static_folder=None)
    app.url_map.converters["name"] = NameConverter
    app.url_map.merge_slashes = False  # an address with double slashes does not exist
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
        lost=LostFiles(settings.volumes.checkpoints, reader, clock),
        files=files.Files(
            settings.volumes,
            settings.capacity.sent_files,
            partial(_note_audit, store) if settings.has_users else None,
            monotonic=monotonic,
        ),
        logs=LogReader(settings.volumes),
        rankings=Rankings(settings.volumes, is_local=settings.is_local),
        summaries=Summaries(settings.volumes, monotonic),
        past=LogPages(PastStore(reader)),
        metrics=metrics,
        clock=clock,
        monotonic=monotonic,
    )
    metrics.install(app)
    app.extensions["cerebro-background"] = reader.background  # the server starts it
    app.extensions["cerebro-metrics"] = metrics  # for the server at `Settings.health_bind`
    app.extensions["cerebro-disks"] = services.disks
    app.extensions["cerebro-lost"] = services.lost
    identities = Identities(store, monotonic) if settings.has_users else None
    id_tokens = IdTokens(settings.oidc, clock=clock, monotonic=monotonic) if settings.oidc else None
    sessions = Sessions(store, monotonic)
    guard = Guard(
        settings,
        SignInLimiter(monotonic),
        sessions,
        identities=identities,
        id_tokens=id_tokens,
        note=partial(_note_audit, store),
    )
    guard.install(app)
    rights.install(app, reader)
    _install_templates(app, services)
    _add_probes(app)
    trusted_s = FRESH_S if settings.has_users else TRUSTED_S
    polls = PollCache(app.wsgi_app, metrics, monotonic, trusted_s)
    sign_in.register(app, services, guard, polls.forget)
    blueprint, tabs = Blueprint("pages", __name__), Tabs(services)
    for page in _PAGES:
        page.register(blueprint, tabs)
    live_pages.install(app)
    app.register_blueprint(blueprint)
    for register in _PARTS:
        register(app, services)
    problems.register(app, reader)
    gateway.Gateway(settings).install(app)
    services.files.install(app)
    app.wsgi_app = polls  # type: ignore[method-assign]
    return app


def _note_audit(store: Store, what: str) -> None:
    """Add an entry to the audit log. An unavailable store must not prevent a sign-in or a download."""
    try:
        store.note_audit(what)
    except CerebroError as error:
        _log.warning("audit entry lost by=%s what=%s why=%s", g.get("name", ""), what, error)


def _install_templates(app: Flask, services: Services) -> None:
    files = Statics(Path(app.root_path))
    files.install(app)
    # Compress in advance, so that the first reader does not wait. zlib releases the interpreter lock.
    services.reader.background.submit("plotly", lambda: len(plotly()) > 0)

    @app.context_processor
    def shared() -> dict[str, object]:
        return {
            "settings": services.settings,
            "outage": services.reader.outage,
            "now": services.clock(),
            "percent": percent,
            "is_signed_in": g.get("identity") is not None,
            "is_named_by_proxy": g.get("identity") in ("proxy", "oidc"),
            "who": g.get("name", ""),
            "asset": files.address,
        }


def _add_probes(app: Flask) -> None:
    @app.get("/health")
    def health() -> ResponseReturnValue:
        # Clients recognize a dispatcher by this answer, and read the prefix of the store's API from it.
        return jsonify(status="ok", api=gateway.PREFIX)

    @app.get("/live")
    def live() -> ResponseReturnValue:
        return jsonify(status="ok")

    @app.get("/")
    def home() -> ResponseReturnValue:
        return redirect(url_for("pages.experiments"), 303)
