"""The ASGI application: authentication, routing of requests to views, errors as answers.

`App` is created by `kvs_api.__main__` and called by its web server. It checks token and scope for each route of the
table `STORE` and limits bodies to `Settings.max_body_bytes`, 64 KiB before the token is checked. Views
(`kvs_api.api.views`) do the work. They block, so each runs in a thread; a request that waits for news holds no thread
(`kvs_api.api.long_polls`).
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from cerebro import errors
from cerebro.contract.accounts.identity import ACTS_FOR, Principal, Scope
from cerebro.contract.rest import api
from cerebro.contract.rest.routes import STORE
from cerebro.runtime.web.bodies import DisconnectedError, TooLargeError, declared_length, read_body
from cerebro.runtime.web.health import EXPOSITION_TYPE
from cerebro.runtime.web.serving import ConnectionLimits, Threads
from kvs_api.api.access import Access
from kvs_api.api.call import Call
from kvs_api.api.long_polls import LongPoll, LongPolls
from kvs_api.api.views import Views
from kvs_api.metrics import Metrics
from kvs_api.settings import Settings
from kvs_api.store.store import Store

View = Callable[..., Response]

_log = logging.getLogger(__name__)

_UNAUTHENTICATED_BODY_BYTES = 64 * 1024
"""Bytes of a body to read before the token is checked."""

_STATUS: dict[type[errors.CerebroError], int] = {
    errors.BadRequestError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.UnreadableError: 409,
    errors.StoreUnavailableError: 503,
}


class App:
    """The ASGI application of kvs_api.

    Args:
        store: shared by all threads.
        threads: run the views.
        metrics: request counters; ``GET /metrics`` returns them.
        max_waiting: maximum number of requests that wait for news.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        threads: Threads,
        *,
        metrics: Metrics | None = None,
        max_waiting: int = ConnectionLimits().waiting,
    ) -> None:
        store.has_users = settings.has_users
        self._max_body_bytes = settings.max_body_bytes
        self._access, self._store, self._threads = Access(settings, store), store, threads
        self._metrics = metrics or Metrics()
        self._polls = LongPolls(max_waiting)
        views = Views(store)
        resources: dict[str, dict[str, tuple[View, Scope]]] = {
            "/metrics": {
                "GET": (
                    lambda _: Response(self._metrics.exposition(), media_type=EXPOSITION_TYPE),
                    Scope.READ,
                )
            }
        }
        for key, operation in STORE.items():
            method, path = key.split(" ", 1)
            view = getattr(views, operation.name), operation.scope or Scope.NONE
            resources.setdefault(path, {})[method] = view
        self._router = Router(
            [Route(path, _Resource(self, path, found)) for path, found in resources.items()],
            redirect_slashes=False,
            default=_Resource(self, "", {}),
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        await self._router(scope, receive, send)

    def answer_waiting(self) -> None:
        """Answer all waiting requests, and let no later one wait. In the event loop only."""
        self._polls.end()

    async def answer(
        self, request: Request, path: str, views: dict[str, tuple[View, Scope]]
    ) -> Response | None:
        """Answer a request for one path, and count it.

        Returns:
            `None` if the caller left before its request arrived or while it waited for news.
        """
        began = time.perf_counter()
        method = "GET" if request.method == "HEAD" else request.method  # uvicorn sends no body for HEAD
        view, scope = views.get(method, (_refuse_method if views else _refuse_path, Scope.KNOWN))
        # Callers may send any method: methods without a view share one label.
        route, method = (path, method) if method in views else ("none", "any")
        # Unauthenticated callers must not fill the memory.
        limit = _UNAUTHENTICATED_BODY_BYTES if scope is Scope.OPEN else self._max_body_bytes
        try:
            response = await self._content_and_answer(request, view, scope, limit)
        except TooLargeError:
            response = problem(
                errors.BadRequestError(
                    f"{request.method} {request.url.path}: the body has more than {limit:,} bytes"
                ),
                413,
            )
        except DisconnectedError:
            return None
        self._metrics.count_request(route, method, response.status_code, time.perf_counter() - began)
        return response

    async def _content_and_answer(self, request: Request, view: View, scope: Scope, limit: int) -> Response:
        length = declared_length(request.scope["headers"])
        if length is not None and length > limit:
            raise TooLargeError
        call = Call(request)
        if length is None or length > _UNAUTHENTICATED_BODY_BYTES:
            refusal = await self._threads.run(self._answered, call, _let_in, scope)
            if refusal.status_code >= 400:
                return refusal
        if length != 0:
            content = io.BytesIO()
            await read_body(request.receive, content, limit)
            call.content = content.getvalue()
        poll = LongPoll()
        while True:
            response = await self._threads.run(self._answered, call, view, scope, poll)
            if poll.is_waiting and await self._polls.news(poll, request.receive):
                continue
            self._polls.forget(poll)
            if poll.is_waiting:
                self._store.forget(poll)
                raise DisconnectedError
            return response

    def _answered(self, call: Call, view: View, scope: Scope, poll: LongPoll | None = None) -> Response:
        """Authenticate the caller and call the view. Runs in a thread."""
        request = call.request
        try:
            self._store.fence.set(call.term())
            self._store.poll.set(poll)
            if poll is not None:
                poll.is_waiting = False
            call.principal = self._principal(request, scope)
            return view(call, **request.path_params)
        except errors.CerebroError as error:
            return problem(error)
        except ValidationError as error:
            found = errors.validation_summary(error.errors())
            return problem(errors.BadRequestError(f"{request.method} {request.url.path}: {found}"))
        except _RefusedError as refused:
            message = f"{request.method} {request.url.path}: {refused}"
            return problem(errors.BadRequestError(message), refused.status)
        except Exception:  # noqa: BLE001 - answered as 500, and logged
            # A bug of kvs_api is no refusal: the caller may try again.
            _log.exception("%s %s failed", request.method, request.url.path)
            return problem(
                errors.ServerError(f"{request.method} {request.url.path} failed: see the log of kvs_api"), 500
            )

    def _principal(self, request: Request, scope: Scope) -> Principal | None:
        if scope is Scope.OPEN:
            return None
        token, acts_for = request.headers.get("authorization", ""), request.headers.get(ACTS_FOR, "")
        principal = self._access.authenticate(token, acts_for)
        # The scope `ACT` is the dispatcher's own, also when it acts for a user.
        who = self._access.authenticate(token) if acts_for and scope is Scope.ACT else principal
        if who is not None and not who.may(scope):
            raise errors.ForbiddenError(who.lacks(scope))
        return principal


class _Resource:
    """One path, with a view for each method. An ASGI application, so that the router passes it all methods."""

    def __init__(self, app: App, path: str, views: dict[str, tuple[View, Scope]]) -> None:
        self._app, self._path, self._views = app, path, views

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._app.answer(Request(scope, receive), self._path, self._views)
        if response is not None:
            await response(scope, receive, send)


class _RefusedError(Exception):
    """A request without a view."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _refuse_method(_: Call, **__: str) -> Response:
    raise _RefusedError(405, "the path has no such method")


def _refuse_path(_: Call) -> Response:
    raise _RefusedError(404, "there is no such path")


def _let_in(_: Call, **__: str) -> Response:
    return Response(status_code=204)


def problem(error: errors.CerebroError, status: int = 0) -> Response:
    """Return an error as an answer, by default with the status of its type."""
    status = status or next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    body = api.Problem(error=type(error).__name__, message=str(error))
    return Response(body.model_dump_json(), status, media_type="application/json")
