"""A web server for tests that leaves no thread after it is closed."""

from __future__ import annotations

import socket
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """`server_close` closes keep-alive connections and joins the serving threads."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._connections = set[Any]()
        super().__init__(*arguments, **keywords)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a closed connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and close all connections."""
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()
