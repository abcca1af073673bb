"""Whether a process is well: a small HTTP server for those that have none of their own, and the question from outside.

``GET /health`` says whether it can do its work (readiness), ``GET /live`` whether it works at all (liveness: starting
it anew could help). Both answer 200, or 503 with one line that says why not. kvs_api and dispatcher answer the same
under their own address. ``python -m cerebro.health [URL]`` asks, for containers' health commands. Standard library
only: it is run every few seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cerebro.errors import ClusterError

Check = Callable[[], str]
"""What is wrong, in one line; empty if nothing is. Must answer at once, from any thread."""

_PATIENCE_S = 5.0


def serve(bind: str, *, ready: Check, live: Check) -> ThreadingHTTPServer:
    """Answer on `bind` (host:port, of ``CEREBRO_HEALTH_BIND``) from a thread of its own, until the process ends.

    Raises:
        ClusterError: `bind` is no host:port, or cannot be listened on.
    """
    checks: dict[str, Check] = {"/health": ready, "/live": live}

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            check = checks.get(self.path.partition("?")[0])
            status, text = (404, "ask for /health or /live") if check is None else _verdict(check())
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: probes come every few seconds."""

    host, _, port = bind.rpartition(":")
    try:
        server = ThreadingHTTPServer((host, int(port)), Handler)
    except (OSError, ValueError, OverflowError) as cause:
        raise ClusterError(
            f"CEREBRO_HEALTH_BIND is {bind!r}, expected a free host:port such as 0.0.0.0:7071: {cause}"
        ) from cause
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


def _verdict(problem: str) -> tuple[int, str]:
    return (503, problem.splitlines()[0]) if problem else (200, "ok")


def ask(url: str) -> str:
    """What is wrong with the process behind `url`; empty if it answers that it is well."""
    try:
        # Not through a proxy: the process is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=_PATIENCE_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {error}"


def own_url(environment: Mapping[str, str]) -> str:
    """Where the service with this environment answers, asked from its own container."""
    bind = environment.get("CEREBRO_HEALTH_BIND") or environment.get("CEREBRO_BIND") or ""
    host, _, port = bind.rpartition(":")
    name = "127.0.0.1" if host in ("", "0.0.0.0") else host
    return f"http://{name}:{port}/health" if port else ""


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """0 if the process at the URL, or the one with this environment, is well; else 1, and why."""
    url = arguments[0] if arguments else own_url(environment)
    problem = ask(url) if url else "give a URL, or set CEREBRO_HEALTH_BIND or CEREBRO_BIND"
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
