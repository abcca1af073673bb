"""WSGI middleware that answers repeated polls before Flask, at a tenth of the cost.

An open page polls one address every second or so with identical headers. Rights depend only on the headers and the
sender's address (`dispatcher.access.guard`). So a request needs no second check if an equal one was admitted within 5
s (`TRUSTED_S`; 1 s in users mode). It gets a 304, or a body that `pages.answers` has already built; everything else
goes to Flask. Remembers 1,000 polls.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING

from cerebro.errors import CerebroError
from dispatcher.access.guard import VIEWS
from dispatcher.metrics import COUNTED, Counted, Metrics
from dispatcher.pages.addresses import FRAGMENTS
from dispatcher.pages.answers import REVALIDATE, Revalidate

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    Headers = list[tuple[str, str]]

TRUSTED_S = 5.0
"""Seconds without a new check of an admitted poll. After a sign-out at another process, its answers stop then."""
_MAX_POLLS = 1_000
_MAX_KEY_LENGTH = 4_000
"""Maximum number of compared characters. Longer requests are not cached."""
_PREFIXES = (f"{FRAGMENTS}/", VIEWS)
_BODY_HEADERS = frozenset({"ETag", "Content-Length", "Content-Encoding", "Content-Type", "X-Request-Id"})
"""Headers that differ between responses."""


@dataclass(frozen=True, slots=True)
class _AdmittedPoll:
    revalidate: Revalidate
    counted: Counted
    headers: Headers
    until: float


class PollCache:
    """Middleware around the application `app`. Safe for several threads.

    Args:
        monotonic: seconds that never go back.
        trusted_s: seconds for which an admitted poll needs no check.
    """

    def __init__(
        self,
        app: WSGIApplication,
        metrics: Metrics,
        monotonic: Callable[[], float],
        trusted_s: float = TRUSTED_S,
    ) -> None:
        self._trusted_s = trusted_s
        self._app, self._metrics, self._monotonic = app, metrics, monotonic
        self._lock = threading.Lock()
        self._polls: OrderedDict[tuple[object, ...], _AdmittedPoll] = OrderedDict()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333): an admitted poll from the cache, others by the application."""
        key, began = _key(environ), perf_counter()
        if key is None:
            return self._app(environ, start_response)
        with self._lock:
            poll = self._polls.get(key)
        if poll is not None and self._monotonic() < poll.until:
            content = self._answer(poll, began, environ, start_response)
            if content is not None:
                return content

        def begin(status: str, headers: Headers, *raised: object) -> Callable[[bytes], object]:
            revalidate, counted = environ.get(REVALIDATE), environ.get(COUNTED)
            is_admitted = status[:3] in ("200", "304") and not any(
                name == "Set-Cookie" for name, _ in headers
            )
            if revalidate is not None and counted is not None and is_admitted:
                fixed_headers = [(name, value) for name, value in headers if name not in _BODY_HEADERS]
                self._remember(
                    key,
                    _AdmittedPoll(revalidate, counted, fixed_headers, self._monotonic() + self._trusted_s),
                )
            return start_response(status, headers, *raised)  # type: ignore[arg-type]

        return self._app(environ, begin)

    def _answer(
        self, poll: _AdmittedPoll, began: float, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes] | None:
        """Answer without the application; return `None` if that is impossible."""
        try:
            found = poll.revalidate(environ.get("HTTP_IF_NONE_MATCH", ""))
        except CerebroError:
            return None  # the application formats the error
        if found is None:
            return None
        tag, body = found
        status = HTTPStatus.NOT_MODIFIED if body is None else HTTPStatus.OK
        headers = [*poll.headers, ("ETag", f'W/"{tag}"'), ("X-Request-Id", secrets.token_hex(4))]
        if body is not None:
            headers += ("Content-Type", body.content_type), ("Content-Length", str(len(body.content)))
            headers += [("Content-Encoding", "gzip")] if body.is_packed else []
        start_response(f"{status.value} {status.phrase}", headers)
        self._metrics.count(poll.counted, status, perf_counter() - began)
        return () if body is None else (body.content,)

    def forget(self) -> None:
        """Forget all admitted polls, after a sign-out: the next poll of each page is checked."""
        with self._lock:
            self._polls.clear()

    def _remember(self, key: tuple[object, ...], poll: _AdmittedPoll) -> None:
        with self._lock:
            self._polls[key] = poll
            self._polls.move_to_end(key)
            while len(self._polls) > _MAX_POLLS:
                self._polls.popitem(last=False)


def _key(environ: WSGIEnvironment) -> tuple[object, ...] | None:
    """Return everything that a poll's response depends on, except the tag; `None` for other requests."""
    path, query = environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")
    if environ.get("REQUEST_METHOD") != "GET" or not path.startswith(_PREFIXES):
        return None
    headers = tuple(
        (name, value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and name != "HTTP_IF_NONE_MATCH"
    )
    if sum(len(value) for _, value in headers) + len(path) + len(query) > _MAX_KEY_LENGTH:
        return None
    connection = (environ.get(name, "") for name in ("REMOTE_ADDR", "wsgi.url_scheme", "CONTENT_LENGTH"))
    return path, query, *connection, headers
