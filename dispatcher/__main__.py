"""Entry point ``python -m dispatcher``: read settings, create the application, serve it until SIGTERM.

The only module that starts servers and the background thread. Ends with a message if a setting is invalid or the
address is in use. Everything about requests is in `app` and below.
"""

from __future__ import annotations

import logging
import os
import sys

from cerebro.contract.accounts.identity import ACTS_FOR, warning_of
from cerebro.errors import CerebroError
from cerebro.runtime import logs
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.web import health
from cerebro.runtime.web.serving import Threads, WebServer
from cerebro.runtime.web.wsgi import WsgiOnAsgi
from dispatcher.access.guard import MAX_UPLOAD_BYTES, acts_for
from dispatcher.app import create_app
from dispatcher.settings import Settings

_log = logging.getLogger(__name__)


def main() -> None:
    """Serve until SIGTERM."""
    try:
        settings = Settings.from_environment(os.environ)
        logs.set_up("dispatcher", os.environ, secrets=(settings.token,))
        if warning := warning_of(settings.token):
            _log.warning("%s", warning)
    except CerebroError as error:
        sys.exit(f"dispatcher: {error}")
    retry_for_s = settings.retry_for_s  # limits both an unavailable and a hanging store
    store = KvsClient(
        settings.server,
        settings.token,
        retry_for_s=retry_for_s,
        timeout_s=retry_for_s,
        pool=settings.capacity.threads,
        write_headers=lambda: {ACTS_FOR: somebody} if (somebody := acts_for()) else {},
    )
    app = create_app(settings, store)
    threads = Threads(settings.capacity.threads)
    # The server reads a body before the app sees it, and refuses without a page: leave room for the page's refusal.
    served = WsgiOnAsgi(app, threads, max_body_bytes=2 * MAX_UPLOAD_BYTES)
    try:
        server = WebServer(served, host=settings.host, port=settings.port, threads=threads)
        if settings.health_bind:
            exposition = app.extensions["cerebro-metrics"].exposition if settings.has_metrics else None
            health.serve(settings.health_bind, ready=server.hung, live=server.hung, metrics=exposition)
    except CerebroError as error:
        sys.exit(f"dispatcher: {error}")
    app.extensions["cerebro-background"].start()
    server.run_process()


if __name__ == "__main__":
    main()
