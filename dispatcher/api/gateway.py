"""The store's API for clients outside the cluster: ``/api/...`` is handed on to kvs_api, the answer streamed back.

Only what a client needs is handed on: a caller here can request runs and follow them; it cannot report work, decide or
lead. `guard` has checked the caller's token before; the store is asked with the dispatcher's own or, where there are
users, with the caller's. Knows as little as
possible of what is asked and answered.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import urllib3
from flask import Flask, Response, request

from cerebro.contract import api
from cerebro.contract.openapi import Operation
from cerebro.contract.routes import STORE
from dispatcher.settings import Settings

PREFIX = "/api"

_SMALL, _LARGE = 8 << 20, 48 << 20
"""Largest bodies: a request with thousands of configurations; encoded user code or a code archive."""

HANDED_ON = (
    "GET /health",
    "GET /openapi.json",
    "GET /v1/experiments",
    "GET /v1/experiments/{name}",
    "PUT /v1/experiments/{name}",
    "GET /v1/experiments/{name}/events",
    "POST /v1/experiments/{name}/events",
    "DELETE /v1/experiments/{name}/quarantine",
    "GET /v1/experiments/{name}/live",
    "GET /v1/experiments/{name}/stacks",
    "POST /v1/experiments/{name}/stacks",
    "POST /v1/watch",
    "GET /v1/queue",
    "GET /v1/workers",
    "GET /v1/workers/{name}/usage",
    "PUT /v1/workers/{name}/quarantine",
    "POST /v1/workers/{name}/release",
    "POST /v1/workers/{name}/check",
    "GET /v1/cluster/health",
    "GET /v1/audit",
    "GET /v1/whoami",
    "GET /v1/quotas",
    "PUT /v1/quotas/{name}",
    "GET /v1/tokens",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{token}",
    "GET /v1/code/{sha256}",
    "PUT /v1/code/{sha256}",
    "GET /v1/experiments/{name}/segments",
    "GET /v1/experiments/{name}/snapshot",
    "GET /v1/archives/{sha256}",
    "PUT /v1/archives/{sha256}",
    "GET /v1/cluster/size",
    "PUT /v1/cluster/size",
    "DELETE /v1/cluster/size",
    "GET /v1/cluster/troubles",
    "POST /v1/trials/forget",
    "GET /v1/history",
    "DELETE /v1/history",
    "GET /v1/registry",
    "GET /v1/registry/{name}",
    "POST /v1/registry/{name}",
    "POST /v1/registry/{name}/aliases",
)
"""Method and path of the store's routes that clients need."""

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
        self._server, self._has_users = settings.server, settings.has_users
        self._slots = threading.BoundedSemaphore(settings.handed_on)
        self._long_poll_slots = threading.BoundedSemaphore(settings.blocked_reads)
        self._http = urllib3.PoolManager(
            maxsize=settings.threads, headers={"Authorization": f"Bearer {settings.token}"}, retries=False
        )

    def install(self, app: Flask) -> None:
        """Add the routes."""
        for key in HANDED_ON:
            method, path = key.split(" ")
            rule = path.replace("{name}", "<name:name>").replace("{sha256}", "<string(length=64):sha256>")
            rule = rule.replace("{token}", "<string(length=16):token>")
            limit = 0 if STORE[key].body is None else _LARGE if "{sha256}" in path else _SMALL
            app.add_url_rule(
                PREFIX + rule, f"gateway {method} {rule}", self._view(path, limit), methods=[method]
            )

    def _view(self, path: str, limit: int) -> Callable[..., Response]:
        def view(**parts: str) -> Response:
            if (request.content_length or 0) > limit:
                size = f"{request.content_length:,} bytes, the limit here is {limit:,}"
                return problem(413, "BadRequestError", f"{request.method} {request.path}: {size}")
            address = path.format(**{name: quote(part, safe="") for name, part in parts.items()})
            if path != "/v1/watch":
                return self._ask(address)
            return self._wait(address)

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
        if self._has_users:  # the store knows who may what
            headers["Authorization"] = request.headers.get("Authorization", "")
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
        if answer.status == _UNAUTHORIZED and not self._has_users:
            answer.close()
            return problem(503, "StoreUnavailableError", _REFUSED)  # the caller's own token is right
        kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        response = Response(itertools.chain((first,), pieces), answer.status, kept)
        # A caller that goes away in the middle leaves a connection that nobody else can use.
        response.call_on_close(answer.close)
        return response


def operations() -> dict[str, Operation]:
    """The routes as the OpenAPI document describes them, by method and path."""
    found = {}
    for key in HANDED_ON:
        known = STORE[key]
        refusals = {400, 404} if "{" in key else {400} if known.query or known.body else set()
        statuses = tuple({*known.statuses, *refusals, *((413,) if known.body else ())})
        # While the store is away, the answer is the dispatcher's.
        answers = {503: dict[str, Any]} if known.answers else {}
        found[key.replace(" ", f" {PREFIX}")] = replace(
            known, name="", is_open=False, statuses=statuses, answers=answers
        )
    return found


def problem(status: int, kind: str, message: str) -> Response:
    """A refusal that `cerebro.runtime.kvs` understands."""
    text = api.Problem(error=kind, message=message).model_dump_json()
    return Response(text, status, mimetype="application/json")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # none, or nonsense that the store refuses
