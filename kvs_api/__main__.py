"""Start kvs_api: wiring only."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from cerebro.contract.identity import warning_of
from cerebro.errors import CerebroError
from cerebro.runtime import health, logs
from cerebro.runtime.draining import Draining, run
from cerebro.runtime.serving import create_server
from kvs_api.app import create_app
from kvs_api.metrics import MeteredStore, Metrics
from kvs_api.settings import Settings

_log = logging.getLogger(__name__)

_SWITCH_S = 0.02


def main() -> None:
    """Serve until SIGTERM."""
    # Requests take a millisecond of the processor each, beside waits for Redis. Where hundreds come at once,
    # threads that are interrupted in the middle of theirs only make each other wait: Python does that every 5 ms.
    sys.setswitchinterval(_SWITCH_S)
    metrics = Metrics()
    draining, sockets = Draining(), dict[int, Any]()
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("kvs-api", os.environ, secrets=settings.secrets)
        if warning := warning_of(settings.token):
            _log.warning("%s", warning)
        store = MeteredStore(settings.redis_url, log_files=settings.log_files, metrics=metrics)
        metrics.watch(store)
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    app = create_app(settings, store)
    metrics.install(app)
    try:
        server = create_server(
            app,
            sockets=sockets,
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            # Before the token is looked at: nobody may make us keep more than the largest honest request.
            max_body_bytes=settings.max_body_bytes,
        )
        if settings.health_bind:
            health.serve(
                settings.health_bind,
                ready=lambda: server.hung() or ("" if store.ping() else "Redis does not answer"),
                live=server.hung,
                metrics=metrics.exposition if settings.tells_metrics else None,
            )
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    run(server, sockets, draining)


if __name__ == "__main__":
    main()
