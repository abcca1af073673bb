"""Start the dispatcher: wiring only."""

from __future__ import annotations

import os
import sys
from typing import Any

import waitress

from cerebro import health, logs
from cerebro.draining import Draining, run
from cerebro.errors import CerebroError
from cerebro.kvs import KvsClient
from dispatcher.app import create_app
from dispatcher.guard import MAX_UPLOAD_BYTES
from dispatcher.settings import Settings


def main() -> None:
    """Serve until SIGTERM."""
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("dispatcher", os.environ, secrets=(settings.token,))
    except CerebroError as error:
        sys.exit(f"dispatcher: {error}")
    patience_s = settings.patience_s  # of a store that hangs as of one that is away
    store = KvsClient(
        settings.server, settings.token, patience_s=patience_s, timeout_s=patience_s, pool=settings.threads
    )
    sockets: dict[int, Any] = {}
    app = create_app(settings, store)
    if settings.health_bind:
        try:
            exposition = app.extensions["cerebro-metrics"].exposition
            health.serve(settings.health_bind, ready=str, live=str, metrics=exposition)
        except CerebroError as error:
            sys.exit(f"dispatcher: {error}")
    try:
        server = waitress.create_server(
            app,
            map=sockets,
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            # waitress takes a body in before the app sees it, and refuses without a page: some room for the
            # page's own refusal, not the gigabyte of its default.
            max_request_body_size=2 * MAX_UPLOAD_BYTES,
            ident=None,
        )
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        sys.exit(
            f"dispatcher: cannot listen on {where} ({error.strerror}): set CEREBRO_BIND to a free address"
        )
    app.extensions["cerebro-background"].start()
    run(server, sockets, Draining())


if __name__ == "__main__":
    main()
