"""Start the dispatcher: wiring only."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import waitress

from cerebro.draining import Draining, run
from cerebro.errors import CerebroError
from cerebro.kvs import KvsClient
from dispatcher.app import create_app
from dispatcher.guard import MAX_UPLOAD_BYTES
from dispatcher.settings import Settings


def main() -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = Settings.from_environment(os.environ)
    except CerebroError as error:
        sys.exit(f"dispatcher: {error}")
    store = KvsClient(settings.server, settings.token, patience_s=settings.patience_s, pool=settings.threads)
    sockets: dict[int, Any] = {}
    try:
        server = waitress.create_server(
            create_app(settings, store),
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
    run(server, sockets, Draining())


if __name__ == "__main__":
    main()
