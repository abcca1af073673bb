"""A web server of a test, with no thread left once it is closed."""

from __future__ import annotations

import socket
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """`server_close` ends connections that clients keep open, and waits for the threads that serve them."""

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
        """One connection has ended."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening, and end all connections."""
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()
