"""Entry point of the kvs_api process (``python -m kvs_api``): reads settings, connects the parts, serves until SIGTERM.

Starts one server for the API and, if configured, one without tokens for health and metrics. No rule about requests
or state is here: see `kvs_api.api.app` and `kvs_api.store.store`.
"""

from __future__ import annotations

import logging
import os
import sys

from cerebro.contract.accounts.identity import warning_of
from cerebro.errors import CerebroError
from cerebro.runtime import logs
from cerebro.runtime.web import health
from cerebro.runtime.web.serving import ConnectionLimits, Threads, WebServer
from kvs_api.api.app import App
from kvs_api.metrics import MeteredStore, Metrics
from kvs_api.settings import Settings

_log = logging.getLogger(__name__)

_SWITCH_S = 0.02
"""Seconds a Python thread may run before another gets its turn."""


def main() -> None:
    """Serve until SIGTERM."""
    # Requests use the processor for a millisecond each, apart from waits for Redis. Python's default switch
    # interval of 5 ms interrupts threads mid-request, which under hundreds of requests only adds waiting.
    sys.setswitchinterval(_SWITCH_S)
    metrics = Metrics()
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("kvs-api", os.environ, secrets=settings.secrets)
        if warning := warning_of(settings.token):
            _log.warning("%s", warning)
        store = MeteredStore(settings.redis_url, log_files=settings.log_files, metrics=metrics)
        metrics.watch(store)
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    threads = Threads(settings.threads)
    limits = ConnectionLimits.of_this_process(settings.threads)
    app = App(settings, store, threads, metrics=metrics, max_waiting=limits.waiting)
    try:
        server = WebServer(
            app,
            host=settings.host,
            port=settings.port,
            threads=threads,
            limits=limits,
            before_drain=app.answer_waiting,
        )
        if settings.health_bind:
            health.serve(
                settings.health_bind,
                # Both return the reason why not; an empty text means yes.
                ready=lambda: server.hung() or ("" if store.ping() else "Redis does not answer"),
                live=server.hung,
                metrics=metrics.exposition if settings.has_metrics else None,
            )
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    server.run_process()


if __name__ == "__main__":
    main()
