"""Health of a process: a small HTTP server, and a client for probes.

All services call `serve` at their start. ``GET /health`` is readiness, ``GET /live`` is liveness (a restart could
help). Both answer 200, or 503 with one line with the reason. ``GET /metrics`` is for Prometheus. Web services answer
the same at their own address, `/metrics` only with the token. This server needs no token, so its port must be reachable
only inside the cluster. Web services run it too, because their own connections and threads may all be busy.

``python -m cerebro.runtime.web.health [URL]`` is the containers' health command. It runs every few seconds, so this
module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from cerebro.errors import ClusterError
from cerebro.runtime.web.addresses import EVERYWHERE, in_url, listener, split_bind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Check = Callable[[], str]
"""Returns the problem in one line, or an empty text. Must return at once, in any thread."""

Exposition = Callable[[], bytes]
"""Returns metrics in Prometheus' text format. Called from any thread."""

EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of an `Exposition` (Prometheus, "Exposition formats")."""

_TIMEOUT_S = 5.0
_MAX_REQUESTS = 32
"""Maximum requests at a time; a further one ends the oldest."""
_LONGEST_REQUEST_S = 15.0
"""Seconds after which a request is ended."""
_TEXT = "text/plain; charset=utf-8"


def serve(bind: str, *, ready: Check, live: Check, metrics: Exposition | None = None) -> ThreadingHTTPServer:
    """Serve on `bind` (host:port, from ``CEREBRO_HEALTH_BIND``) in a thread until the process ends.

    Raises:
        ClusterError: `bind` is not host:port, or cannot be listened on.
    """
    checks: dict[str, Check] = {"/health": ready, "/live": live}

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and metrics is not None:
                self._answer(200, EXPOSITION_TYPE, metrics())
            elif (check := checks.get(path)) is not None:
                status, text = _verdict(check())
                self._answer(status, _TEXT, f"{text}\n".encode())
            else:
                self._answer(404, _TEXT, b"ask for /health, /live or /metrics\n")

        def _answer(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: probes come every few seconds."""

    host, port = split_bind(bind)
    try:
        server = _Server(listener(host, int(port)), Handler)
    except (OSError, ValueError, OverflowError) as cause:
        raise ClusterError(
            f"CEREBRO_HEALTH_BIND is {bind!r}, expected a free host:port such as [::]:7071: {cause}"
        ) from cause
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """Serves few short requests at once, so that slow or numerous requests do not block probes.

    A handler's timeout is per read, so one byte every few seconds would hold it indefinitely.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bound: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, float] = {}
        """Connection -> monotonic time at which it was opened, oldest first."""
        self.address_family = bound.family
        super().__init__(bound.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_port = bound.getsockname()[1]
        bound.listen(self.request_queue_size)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread. With too many requests, end the oldest."""
        self._open[request] = time.monotonic()
        for each in list(self._open)[:-_MAX_REQUESTS]:
            self._end(each)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End requests that take too long. Called after each request and twice a second."""
        now = time.monotonic()
        for each, since in list(self._open.items()):
            if now - since > _LONGEST_REQUEST_S:
                self._end(each)

    def shutdown_request(self, request: Any) -> None:
        """Forget an answered request."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of closed connections."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _end(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        with contextlib.suppress(OSError):  # its thread has just closed it
            request.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it


def registry() -> CollectorRegistry:
    """Create a registry for a service's metrics and its process's metrics.

    Without the ``_created`` series, which double the storage and are not in Prometheus' text format.
    """
    import prometheus_client

    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    collector_registry = prometheus_client.CollectorRegistry(auto_describe=True)
    prometheus_client.ProcessCollector(registry=collector_registry)
    return collector_registry


def _verdict(problem: str) -> tuple[int, str]:
    return (503, problem.splitlines()[0]) if problem else (200, "ok")


def probe(url: str) -> str:
    """Return the problem of the process behind `url`, or an empty text if it is healthy."""
    # Imported here, because services that only answer probes save half a megabyte.
    import urllib.error
    import urllib.request

    try:
        # Not through a proxy: the process is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {error}"


def own_url(environment: Mapping[str, str]) -> str:
    """Return the health URL of the service with this environment, for its own container."""
    bind = environment.get("CEREBRO_HEALTH_BIND") or environment.get("CEREBRO_BIND") or ""
    host, port = split_bind(bind)
    name = "127.0.0.1" if host in ("", "0.0.0.0") else "localhost" if host in EVERYWHERE else in_url(host)
    return f"http://{name}:{port}/health" if port else ""


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Probe the URL, or the service with this environment. Return 0 if it is healthy; else 1, with a message."""
    url = arguments[0] if arguments else own_url(environment)
    problem = probe(url) if url else "give a URL, or set CEREBRO_HEALTH_BIND or CEREBRO_BIND"
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
