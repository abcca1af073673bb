"""Serve an app by threads of this process, for browsers and programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask

from cerebro.runtime.web.serving import Threads, WebServer
from cerebro.runtime.web.wsgi import WsgiOnAsgi
from tests.waiting import HANG_S

_THREADS = 4


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    """Serve the app on a free port and yield its address."""
    threads = Threads(_THREADS)
    server = WebServer(WsgiOnAsgi(app, threads), host="127.0.0.1", threads=threads)
    with running(server):
        yield f"http://127.0.0.1:{server.port}"


@contextmanager
def running(server: WebServer) -> Iterator[None]:
    """Run a server in a thread for the duration of the context."""
    loop = start(server)
    try:
        yield
    finally:
        end(server, loop)


def start(server: WebServer) -> threading.Thread:
    """Run a server in a thread until `end`."""
    loop = threading.Thread(target=server.run, daemon=True)
    loop.start()
    return loop


def end(server: WebServer, loop: threading.Thread) -> None:
    """Stop the server."""
    server.stop()
    loop.join(HANG_S)
