"""Gateway for clients outside the cluster: forward ``/api/...`` to kvs_api.

Only routes that a client needs are forwarded (`FORWARDED`): a client can request runs and follow them, but not report
work, decide or lead. `Guard` has checked the token before. The request to the store carries the dispatcher's token,
or the caller's in users mode. This module does not interpret requests and answers, except for waits (shortened to 5
s) and sizes. It does not retry: clients do.
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

from cerebro.contract.rest import api
from cerebro.contract.rest.openapi import Operation
from cerebro.contract.rest.routes import STORE
from dispatcher.settings import Settings

PREFIX = "/api"

_SMALL, _LARGE = 8 << 20, 48 << 20
"""Maximum body in bytes: a request with thousands of configurations; user code or a code archive."""

FORWARDED = (
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
    "GET /v1/notifications",
    "POST /v1/notifications",
    "DELETE /v1/notifications/{name}",
    "POST /v1/notifications/{name}/test",
    "GET /v1/quotas",
    "PUT /v1/quotas/{name}",
    "POST /v1/sign-in-codes",
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
    "GET /v1/cluster/worker-set",
    "POST /v1/trials/forget",
    "GET /v1/history",
    "DELETE /v1/history",
    "GET /v1/registry",
    "GET /v1/registry/{name}",
    "POST /v1/registry/{name}",
    "POST /v1/registry/{name}/aliases",
)
"""Method and path of the forwarded routes."""

_WAIT_S = 5.0
"""Longest wait of one read in seconds; clients repeat it. It bounds how long a stopping dispatcher waits."""
_ANSWER_S = 25.0
"""Read timeout of the store in seconds. Shorter than the client's, so the client learns the reason."""
_PIECE = 64 << 10
_UNAUTHORIZED = 401
_REFUSED = "the store refuses the dispatcher's token: set the same CEREBRO_TOKEN for both and restart them"
_FORWARDED_HEADERS = ("Content-Type", "Content-Length")


class Gateway:
    """Forwards requests. Safe for several threads.

    Limits the number of concurrent requests, and within it the number of long polls, so that a slow store cannot
    occupy the threads of the pages.
    """

    def __init__(self, settings: Settings) -> None:
        self._server, self._has_users = settings.server, settings.has_users
        self._slots = threading.BoundedSemaphore(settings.capacity.forwarded_calls)
        self._long_poll_slots = threading.BoundedSemaphore(settings.capacity.blocked_reads)
        self._http = urllib3.PoolManager(
            maxsize=settings.capacity.threads,
            headers={"Authorization": f"Bearer {settings.token}"},
            retries=False,
        )

    def install(self, app: Flask) -> None:
        """Add the routes."""
        for key in FORWARDED:
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
                return self._forward_query(address)
            return self._forward_watch(address)

        return view

    def _forward_query(self, path: str) -> Response:
        query = request.args.to_dict()
        wait_s = _number(query.get("wait_s", ""))
        if wait_s > _WAIT_S:
            query["wait_s"] = str(_WAIT_S)
        address = path + "?" * bool(query) + "&".join(f"{quote(k)}={quote(v)}" for k, v in query.items())
        return self._with_slot(wait_s, lambda: self._forward(address, request.stream, request.content_length))

    def _forward_watch(self, path: str) -> Response:
        content = request.get_data()
        try:
            watch = api.WatchRequest.model_validate_json(content)
        except ValueError:
            return self._forward(path, content, len(content))  # the store explains the error
        content = watch.model_copy(update={"wait_s": min(watch.wait_s, _WAIT_S)}).model_dump_json().encode()
        return self._with_slot(watch.wait_s, lambda: self._forward(path, content, len(content)))

    def _with_slot(self, wait_s: float, call: Callable[[], Response]) -> Response:
        if not self._slots.acquire(blocking=False):
            # Clients retry by themselves, with growing pauses.
            return problem(503, "StoreUnavailableError", "too many clients use the store at once: try again")
        try:
            response = self._with_long_poll_slot(call) if wait_s > 0 else call()
        except BaseException:
            self._slots.release()
            raise
        # Sending the answer occupies a thread too, so release the slot at its end.
        response.call_on_close(self._slots.release)
        return response

    def _with_long_poll_slot(self, call: Callable[[], Response]) -> Response:
        if not self._long_poll_slots.acquire(blocking=False):
            return problem(503, "StoreUnavailableError", "too many clients wait for news at once: try again")
        try:
            return call()
        finally:
            self._long_poll_slots.release()

    def _forward(self, address: str, body: object, length: int | None) -> Response:
        headers = {**self._http.headers, "Content-Type": request.content_type or "application/json"}
        if self._has_users:  # the store checks the user's rights
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
            # Read the first piece now: an error can still become a 503 response.
            first = next(pieces, b"")
        except urllib3.exceptions.HTTPError as cause:
            return problem(503, "StoreUnavailableError", f"the store does not answer the dispatcher: {cause}")
        if answer.status == _UNAUTHORIZED and not self._has_users:
            answer.close()
            return problem(503, "StoreUnavailableError", _REFUSED)  # the caller's own token is valid
        answer_headers = {name: answer.headers[name] for name in _FORWARDED_HEADERS if name in answer.headers}
        response = Response(itertools.chain((first,), pieces), answer.status, answer_headers)
        # If the caller disconnects, the connection to the store cannot be reused.
        response.call_on_close(answer.close)
        return response


def operations() -> dict[str, Operation]:
    """Return the forwarded routes for the OpenAPI document, by method and path."""
    found = {}
    for key in FORWARDED:
        known = STORE[key]
        refusals = {400, 404} if "{" in key else {400} if known.query or known.body else set()
        statuses = tuple({*known.statuses, *refusals, *((413,) if known.body else ())})
        # While the store is away, the dispatcher answers.
        answers = {503: dict[str, Any]} if known.answers else {}
        found[key.replace(" ", f" {PREFIX}")] = replace(
            known, name="", is_open=False, statuses=statuses, answers=answers
        )
    return found


def problem(status: int, kind: str, message: str) -> Response:
    """Return an error response that `cerebro.runtime.kvs.client` understands."""
    text = api.Problem(error=kind, message=message).model_dump_json()
    return Response(text, status, mimetype="application/json")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # missing, or invalid: the store refuses it
