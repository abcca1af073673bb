"""Run a WSGI application, such as Flask's, on the ASGI server of `cerebro.runtime.web.serving`.

The dispatcher and the local TensorBoard wrap their applications in `WsgiOnAsgi`. A request gets a thread once all of
its body has arrived, so slow callers occupy connections only. Bodies above 64 KiB wait in a temporary file.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from cerebro.runtime.web.bodies import DisconnectedError, TooLargeError, declared_length, read_body
from cerebro.runtime.web.serving import Threads

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]

_BODY_IN_MEMORY = 64 * 1024
_TOO_LARGE = b"The body is too large\n"


class WsgiOnAsgi:
    """A WSGI application as an ASGI application.

    Args:
        app: the WSGI application.
        threads: threads that run it.
        max_body_bytes: the server refuses larger bodies with status 413.
    """

    def __init__(self, app: WsgiApp, threads: Threads, max_body_bytes: int = 1 << 30) -> None:
        self._app, self._threads, self._max_body_bytes = app, threads, max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        with tempfile.SpooledTemporaryFile(_BODY_IN_MEMORY) as body:
            try:
                if (declared_length(scope["headers"]) or 0) > self._max_body_bytes:
                    raise TooLargeError
                await read_body(receive, body, self._max_body_bytes)
            except DisconnectedError:
                return
            except TooLargeError:
                headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_TOO_LARGE))]
                await send({"type": "http.response.start", "status": 413, "headers": headers})
                await send({"type": "http.response.body", "body": _TOO_LARGE})
                return
            size = body.tell()
            body.seek(0)
            answer = _Answer(asyncio.get_running_loop(), send, self._threads)
            watching = asyncio.ensure_future(answer.watch(receive))
            try:
                await self._threads.run(answer.respond, self._app, _environ(scope, body, size))
            finally:
                watching.cancel()


class _Answer:
    """An answer that a thread gives, piece by piece, while the event loop sends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Any, threads: Threads) -> None:
        self._loop, self._send, self._threads = loop, send, threads
        self._start: dict[str, Any] | None = None
        self._has_left = False

    async def watch(self, receive: Callable[[], Any]) -> None:
        """Note when the caller leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_left = True

    def respond(self, app: WsgiApp, environ: dict[str, Any]) -> None:
        """Call the application and send its answer. Waits while the caller takes nothing."""
        pieces = app(environ, self._begin)
        try:
            # One piece late, so that the last one can end the answer.
            last = b""
            for piece in pieces:
                if last:
                    self._send_piece(last, has_more=True)
                if self._has_left:
                    return
                last = piece
            self._send_piece(last, has_more=False)
        finally:
            if close := getattr(pieces, "close", None):
                close()

    def _begin(self, status: str, headers: list[tuple[str, str]], _exc_info: object = None) -> None:
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._start = {"type": "http.response.start", "status": int(status[:3]), "headers": encoded}

    def _send_piece(self, piece: bytes, *, has_more: bool) -> None:
        messages = [{"type": "http.response.body", "body": piece, "more_body": has_more}]
        if self._start is not None:
            messages.insert(0, self._start)
            self._start = None
        asyncio.run_coroutine_threadsafe(self._send_all(messages), self._loop).result()
        self._threads.note_progress()

    async def _send_all(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await self._send(message)


def _environ(scope: Any, body: IO[bytes], size: int) -> dict[str, Any]:
    server, client = scope.get("server") or ("", 0), scope.get("client") or ("", 0)
    found = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": client[0],
        "CONTENT_LENGTH": str(size),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": body,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"content-type":
            found["CONTENT_TYPE"] = text
        # A header with `_` would overwrite the one with `-`, which a proxy may have set.
        elif b"_" not in name and name not in (b"content-length", b"transfer-encoding"):
            key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
            found[key] = f"{found[key]},{text}" if key in found else text
    return found
