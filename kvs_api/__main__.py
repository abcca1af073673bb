"""Start kvs_api: wiring only."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import waitress

from cerebro.draining import Draining, run
from cerebro.errors import CerebroError
from kvs_api.app import create_app
from kvs_api.settings import Settings
from kvs_api.store import Store


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = Settings.from_environment(os.environ)
    except CerebroError as error:
        sys.exit(f"kvs_api: {error}")
    draining, sockets = Draining(), dict[int, Any]()
    server = waitress.create_server(
        create_app(settings, Store(settings.redis_url, draining, threads=settings.threads)),
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
