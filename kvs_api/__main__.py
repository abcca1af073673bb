"""Start kvs_api: wiring only."""

from __future__ import annotations

import os
import sys
from typing import Any

import waitress

from cerebro import health, logs
from cerebro.draining import Draining, run
from cerebro.errors import CerebroError
from kvs_api.app import create_app
from kvs_api.metrics import MeteredStore, Metrics
from kvs_api.settings import Settings


def main() -> None:
    """Serve until SIGTERM."""
    metrics = Metrics()
    draining, sockets = Draining(), dict[int, Any]()
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("kvs-api", os.environ, secrets=settings.secrets)
        store = MeteredStore(settings.redis_url, draining, threads=settings.threads, metrics=metrics)
        metrics.watch(store)
        if settings.health_bind:
            health.serve(
                settings.health_bind,
                ready=lambda: "" if store.ping() else "Redis does not answer",
                live=str,
                metrics=metrics.exposition,
            )
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    app = create_app(settings, store)
    metrics.install(app)
    server = waitress.create_server(
        app,
        map=sockets,
        host=settings.host,
        port=settings.port,
        threads=settings.threads,
        # Before the token is looked at: nobody may make us keep more than the largest honest request.
        max_request_body_size=settings.max_body_bytes,
        # Long polls hold a connection each; the default of 100 would starve a cluster of 50 workers.
        connection_limit=2000,
        channel_request_lookahead=0,
        ident=None,
    )
    run(server, sockets, draining)


if __name__ == "__main__":
    main()
