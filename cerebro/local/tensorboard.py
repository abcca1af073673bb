"""TensorBoard of a local cluster behind a sign-in: ``python -m cerebro.local.tensorboard --logdir ... --port ...``.

`services` starts it as a process of its own; it reads the event files that the controller writes.

TensorBoard itself answers every client of its port, under any host name: other users of the machine, and web
pages in a local browser (DNS rebinding). The guard redirects a browser without a pass to the cluster's page,
which signs in the user and returns a ticket (`cerebro.runtime.web.tickets`). Programs send the cluster's token.
TensorBoard plugins run here, so this process has only a key derived from the token.

TensorBoard is fast with a data server, which answers every client of a loopback port. If the kernel allows
it, both run in a private network, and only TensorBoard's socket is visible outside. Otherwise TensorBoard
reads without the data server, ten times slower with hundreds of models.
"""

from __future__ import annotations

import argparse
import hmac
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cerebro.local.supervision.ports import HOST
from cerebro.runtime.web import tickets
from cerebro.runtime.web.addresses import host_name
from cerebro.runtime.web.tickets import Kind

KEY, PAGE = "CEREBRO_TENSORBOARD_KEY", "CEREBRO_PAGE"
DOOR = "/tensorboard"
"""Path of the page that sends a signed-in browser here."""

Environ = Mapping[str, Any]
StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

_THREADS = 8
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def guarded(app: Wsgi, *, key: bytes, page: str, clock: Callable[[], float] = time.time) -> Wsgi:
    """Serve `app` only to clients with a pass.

    Args:
        app: an application without access control.
        key: key from `tickets.key_of`.
        page: address of the page that issues tickets.
        clock: seconds since the epoch.
    """
    page_port = urlsplit(page).port

    def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        name = host_name(environ.get("HTTP_HOST", ""))
        cookie = tickets.cookie_name(environ.get("SERVER_PORT"))
        if environ.get("PATH_INFO") == "/live":
            return _say(start, "200 OK", "ok")
        if name not in _OWN_NAMES:
            return _say(start, "421 Misdirected Request", "TensorBoard is opened as 127.0.0.1 or localhost")
        now = clock()
        if _has_pass(environ, key, cookie, now) or _has_token(environ, key):
            return app(environ, start)
        query, ticket = _query(environ)
        if tickets.holds(key, Kind.TICKET, ticket, now):
            content = f"{cookie}={tickets.issue(key, Kind.PASS, now)}"
            cookie_header = f"{content}; Max-Age={tickets.LASTS_S[Kind.PASS]}; Path=/; HttpOnly; SameSite=Lax"
            return _say(start, "303 See Other", "", ("Location", f"/{query}"), ("Set-Cookie", cookie_header))
        if environ.get("REQUEST_METHOD") == "GET" and "text/html" in environ.get("HTTP_ACCEPT", ""):
            shown = f"[{name}]" if ":" in name else name
            return _say(start, "303 See Other", "", ("Location", f"http://{shown}:{page_port}{DOOR}{query}"))
        return _say(
            start,
            "401 Unauthorized",
            f"sign in at {page}{DOOR}, or send the cluster's token as `Authorization: Bearer TOKEN`",
            ("WWW-Authenticate", "Bearer"),
        )

    return answer


def _query(environ: Environ) -> tuple[str, str]:
    """Return the query without the ticket, with its question mark, and the ticket."""
    fields = parse_qsl(environ.get("QUERY_STRING", ""))
    query = urlencode([(name, value) for name, value in fields if name != tickets.PARAMETER])
    return f"?{query}" if query else "", dict(fields).get(tickets.PARAMETER, "")


def _has_pass(environ: Environ, key: bytes, cookie: str, now: float) -> bool:
    pairs = (part.strip().partition("=") for part in environ.get("HTTP_COOKIE", "").split(";"))
    return any(name == cookie and tickets.holds(key, Kind.PASS, content, now) for name, _, content in pairs)


def _has_token(environ: Environ, key: bytes) -> bool:
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(tickets.key_of(token.strip()), key)


def _say(start: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    body = f"{text}\n".encode() if text else b""
    own_headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start(
        status, [*own_headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *headers]
    )
    return [body]


class _Server:
    """TensorBoard's server interface, on our web server. It ends with the process."""

    def __init__(self, app: Wsgi, listener: socket.socket) -> None:
        self._app, self._listener = app, listener

    def get_url(self) -> str:
        """Return the address."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{host}:{port}/"

    def print_serving_message(self) -> None:
        """Write the address into the log."""
        sys.stderr.write(f"TensorBoard at {self.get_url()}\n")

    def serve_forever(self) -> None:
        """Serve requests with the connection limits of the other services."""
        # Imported here: the list of services imports this module and must stay small.
        from cerebro.runtime.web.serving import Threads, WebServer
        from cerebro.runtime.web.wsgi import WsgiOnAsgi

        threads = Threads(_THREADS)
        WebServer(WsgiOnAsgi(self._app, threads), threads=threads, listening=[self._listener]).run_process()


def main() -> None:
    """Serve on ``--port`` until SIGTERM; further arguments are TensorBoard's."""
    options, arguments = _parser().parse_known_args()
    key, page = bytes.fromhex(os.environ.pop(KEY)), os.environ[PAGE]
    listener = socket.create_server((HOST, options.port))
    from cerebro.local import network_namespace

    # Before any thread starts, and after the socket is created, which stays in its network.
    is_alone = network_namespace.private_network()

    # With Keras, TensorFlow may be installed too: 600 MB, which TensorBoard replaces by a stub.
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")

    from tensorboard import default, main_lib, program

    main_lib.global_init()
    board = program.TensorBoard(
        plugins=default.get_plugins(),
        server_class=lambda app, flags: _Server(guarded(app, key=key, page=page), listener),
    )
    board.configure(argv=("tensorboard", "--load_fast", "auto" if is_alone else "false", *arguments))
    sys.exit(board.main())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cerebro.local.tensorboard", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    return parser


if __name__ == "__main__":
    main()
