"""The store's API for clients outside the cluster: ``/api/...`` is handed on to kvs_api, the answer streamed back.

Only what a client needs is handed on: a caller here can request runs and follow them; it cannot report work, decide or
lead. `guard` has checked the caller's token before; the store is asked with the dispatcher's own. Knows as little as
possible of what is asked and answered.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from urllib.parse import quote

import urllib3
from flask import Flask, Response, request

from cerebro.contract import api
from dispatcher.settings import Settings

PREFIX = "/api"

_SMALL, _LARGE = 8 << 20, 48 << 20
"""Largest bodies: a request with thousands of configurations; encoded user code or a code archive."""

_NAME, _SHA256 = "<name:key>", "<string(length=64):key>"

ROUTES: tuple[tuple[str, str, int], ...] = (
    ("GET", "/health", 0),
    ("GET", "/openapi.json", 0),
    ("GET", "/v1/experiments", 0),
    ("GET", f"/v1/experiments/{_NAME}", 0),
    ("PUT", f"/v1/experiments/{_NAME}", _SMALL),
    ("GET", f"/v1/experiments/{_NAME}/events", 0),
    ("POST", f"/v1/experiments/{_NAME}/events", _SMALL),
    ("DELETE", f"/v1/experiments/{_NAME}/quarantine", 0),
    ("GET", f"/v1/experiments/{_NAME}/live", 0),
    ("POST", "/v1/watch", _SMALL),
    ("GET", "/v1/queue", 0),
    ("GET", "/v1/workers", 0),
    ("GET", f"/v1/workers/{_NAME}/usage", 0),
    ("GET", "/v1/audit", 0),
    ("GET", f"/v1/code/{_SHA256}", 0),
    ("PUT", f"/v1/code/{_SHA256}", _LARGE),
    ("GET", f"/v1/archives/{_SHA256}", 0),
    ("PUT", f"/v1/archives/{_SHA256}", _LARGE),
    ("GET", "/v1/cluster/size", 0),
    ("PUT", "/v1/cluster/size", _SMALL),
    ("DELETE", "/v1/cluster/size", 0),
    ("GET", "/v1/cluster/troubles", 0),
)
"""Method, path, bytes of the largest body."""

_WAIT_S = 5.0
"""Longest wait of one read; who wants to wait longer asks again. It bounds how long an ending dispatcher is kept."""
_ANSWER_S = 25.0
"""A store that is silent for longer counts as away: a little sooner than for the client, so that it is told why."""
_PIECE = 64 << 10
_UNAUTHORIZED = 401
_REFUSED = "the store refuses the dispatcher's token: set the same CEREBRO_TOKEN for both and restart them"
_KEPT = ("Content-Type", "Content-Length")


class Gateway:
    """Hands requests on. Safe for several threads; of what is handed on at a time the number is bounded, and of that
    again what waits for news: a store that is slow must not take the pages' threads."""

    def __init__(self, settings: Settings) -> None:
        self._server = settings.server
        self._slots = threading.BoundedSemaphore(settings.handed_on)
        self._long_poll_slots = threading.BoundedSemaphore(settings.blocked_reads)
        self._http = urllib3.PoolManager(
            maxsize=settings.threads, headers={"Authorization": f"Bearer {settings.token}"}, retries=False
        )

    def install(self, app: Flask) -> None:
        """Add the routes."""
        for method, path, limit in ROUTES:
            name = f"gateway {method} {path}"
            app.add_url_rule(PREFIX + path, name, self._view(path, limit), methods=[method])

    def _view(self, rule: str, limit: int) -> Callable[..., Response]:
        def view(key: str = "") -> Response:
            if (request.content_length or 0) > limit:
                size = f"{request.content_length:,} bytes, the limit here is {limit:,}"
                return problem(413, "BadRequestError", f"{request.method} {request.path}: {size}")
            path = rule.replace(_NAME, "{}").replace(_SHA256, "{}").format(quote(key, safe=""))
            return self._wait(path) if rule == "/v1/watch" else self._ask(path)

        return view

    def _ask(self, path: str) -> Response:
        """A request whose wait, if it has one, is in its address."""
        query = request.args.to_dict()
        wait_s = _number(query.get("wait_s", ""))
        if wait_s > _WAIT_S:
            query["wait_s"] = str(_WAIT_S)
        address = path + "?" * bool(query) + "&".join(f"{quote(k)}={quote(v)}" for k, v in query.items())
        return self._bounded(wait_s, lambda: self._hand_on(address, request.stream, request.content_length))

    def _wait(self, path: str) -> Response:
        """A request whose wait is in its body."""
        content = request.get_data()
        try:
            asked = api.WatchRequest.model_validate_json(content)
        except ValueError:
            return self._hand_on(path, content, len(content))  # the store says what is wrong with it
        content = asked.model_copy(update={"wait_s": min(asked.wait_s, _WAIT_S)}).model_dump_json().encode()
        return self._bounded(asked.wait_s, lambda: self._hand_on(path, content, len(content)))

    def _bounded(self, wait_s: float, call: Callable[[], Response]) -> Response:
        if not self._slots.acquire(blocking=False):
            # Clients try again by themselves, with growing pauses.
            return problem(503, "StoreUnavailableError", "too many clients ask the store at once: try again")
        try:
            response = self._waiting(call) if wait_s > 0 else call()
        except BaseException:
            self._slots.release()
            raise
        # Not before all of the answer is sent: that takes a thread, too.
        response.call_on_close(self._slots.release)
        return response

    def _waiting(self, call: Callable[[], Response]) -> Response:
        if not self._long_poll_slots.acquire(blocking=False):
            return problem(503, "StoreUnavailableError", "too many clients wait for news at once: try again")
        try:
            return call()
        finally:
            self._long_poll_slots.release()

    def _hand_on(self, address: str, body: object, length: int | None) -> Response:
        headers = {**self._http.headers, "Content-Type": request.content_type or "application/json"}
        if length:
            headers["Content-Length"] = str(length)
        if api.ONCE in request.headers:
            headers[api.ONCE] = request.headers[api.ONCE]
        try:
            answer = self._http.urlopen(
                request.method,
                self._server + address,
                body=body if length else None,
                headers=headers,
                preload_content=False,
                timeout=urllib3.Timeout(connect=3.0, read=_ANSWER_S),
            )
            pieces = answer.stream(_PIECE)
            # Before the answer begins: what breaks off here can still be told.
            first = next(pieces, b"")
        except urllib3.exceptions.HTTPError as cause:
            return problem(503, "StoreUnavailableError", f"the store does not answer the dispatcher: {cause}")
        if answer.status == _UNAUTHORIZED:
            answer.close()
            return problem(503, "StoreUnavailableError", _REFUSED)  # the caller's own token is right
        kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        response = Response(itertools.chain((first,), pieces), answer.status, kept)
        # A caller that goes away in the middle leaves a connection that nobody else can use.
        response.call_on_close(answer.close)
        return response


def problem(status: int, kind: str, message: str) -> Response:
    """A refusal that `cerebro.runtime.kvs` understands."""
    text = api.Problem(error=kind, message=message).model_dump_json()
    return Response(text, status, mimetype="application/json")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # none, or nonsense that the store refuses
