"""Answers the polls of pages that are left open, before Flask and at a tenth of its cost.

A page asks for one address every second or so, each time with the same headers. Who may see what depends on nothing but
them and the sender's address (`dispatcher.access.guard`), so a request that equals one which was let in within the last
`TRUSTED_S` is let in again without another look. It is told that nothing has changed, or given a body that was built
for somebody else; whatever takes more than that goes to Flask.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING

from cerebro.errors import CerebroError
from dispatcher.access.guard import VIEWS
from dispatcher.metrics import COUNTED, Counted, Metrics
from dispatcher.pages.addresses import FRAGMENTS
from dispatcher.pages.answers import POLL, Answers, Poll

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    Headers = list[tuple[str, str]]

TRUSTED_S = 15.0
"""A session that ends is shown what it was shown before for so long, at most."""
_MAX_POLLS = 1_000
_LONGEST = 4_000
"""Characters of what is compared; who sends more is not remembered."""
_BELOW = (f"{FRAGMENTS}/", VIEWS)
_ABOUT_THE_BODY = frozenset(
    {"etag", "content-length", "content-encoding", "content-type", "x-request-id", "set-cookie"}
)
"""Headers that differ from answer to answer."""


@dataclass(frozen=True, slots=True)
class _Known:
    poll: Poll
    counted: Counted
    headers: Headers
    until: float


class PollCache:
    """WSGI middleware around the whole application. Safe for several threads.

    Args:
        app: answers everything else.
        monotonic: seconds that never go back.
    """

    def __init__(
        self, app: WSGIApplication, answers: Answers, metrics: Metrics, monotonic: Callable[[], float]
    ) -> None:
        self._app, self._answers, self._metrics, self._monotonic = app, answers, metrics, monotonic
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], _Known] = OrderedDict()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        key = _key(environ)
        if key is None:
            return self._app(environ, start_response)
        with self._lock:
            known = self._known.get(key)
        if known is not None and self._monotonic() < known.until:
            content = self._again(known, environ, start_response)
            if content is not None:
                return content
        return self._look(key, environ, start_response)

    def _again(
        self, known: _Known, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes] | None:
        began = perf_counter()
        try:
            found = self._answers.again(known.poll, environ.get("HTTP_IF_NONE_MATCH", ""))
        except CerebroError:
            return None  # the application says it better
        if found is None:
            return None
        tag, body = found
        status = HTTPStatus.NOT_MODIFIED if body is None else HTTPStatus.OK
        headers = [*known.headers, ("ETag", tag), ("X-Request-Id", secrets.token_hex(4))]
        if body is not None:
            headers += ("Content-Type", known.poll.content_type), ("Content-Length", str(len(body.content)))
            if body.is_packed:
                headers.append(("Content-Encoding", "gzip"))
        start_response(f"{status.value} {status.phrase}", headers)
        self._metrics.count(known.counted, status, perf_counter() - began)
        return () if body is None else (body.content,)

    def _look(
        self, key: tuple[object, ...], environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Ask the application, and remember a poll that it lets in."""
        answered: list[tuple[str, Headers]] = []

        def begin(status: str, headers: Headers, *raised: object) -> Callable[[bytes], object]:
            answered.append((status, headers))
            return start_response(status, headers, *raised)  # type: ignore[arg-type]

        content = self._app(environ, begin)
        poll, counted = environ.get(POLL), environ.get(COUNTED)
        if poll is not None and counted is not None and answered:
            status, headers = answered[-1]
            is_whole = status[:3] in ("200", "304")
            if is_whole and not any(name.lower() == "set-cookie" for name, _ in headers):
                self._remember(
                    key, _Known(poll, counted, list(_kept(headers)), self._monotonic() + TRUSTED_S)
                )
        return content

    def _remember(self, key: tuple[object, ...], known: _Known) -> None:
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > _MAX_POLLS:
                self._known.popitem(last=False)


def _key(environ: WSGIEnvironment) -> tuple[object, ...] | None:
    """Everything that an answer depends on but the tag; `None` for what is no poll."""
    path = environ.get("PATH_INFO", "")
    if environ.get("REQUEST_METHOD") != "GET" or not path.startswith(_BELOW):
        return None
    headers = tuple(
        (name, value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and name != "HTTP_IF_NONE_MATCH"
    )
    if sum(len(value) for _, value in headers) + len(path) + len(environ.get("QUERY_STRING", "")) > _LONGEST:
        return None
    return (
        path,
        environ.get("QUERY_STRING", ""),
        environ.get("REMOTE_ADDR", ""),
        environ.get("wsgi.url_scheme", ""),
        environ.get("CONTENT_LENGTH", ""),
        headers,
    )


def _kept(headers: Headers) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in headers if name.lower() not in _ABOUT_THE_BODY)
