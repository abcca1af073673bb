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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING

from cerebro.errors import CerebroError
from dispatcher.access.guard import VIEWS
from dispatcher.metrics import COUNTED, Counted, Metrics
from dispatcher.pages.addresses import FRAGMENTS
from dispatcher.pages.answers import AGAIN, Again

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    Headers = list[tuple[str, str]]

TRUSTED_S = 5.0
"""Seconds without a new check of an admitted poll. After a sign-out at another process, its answers stop then."""
_MAX_POLLS = 1_000
_LONGEST = 4_000
"""Characters of what is compared; who sends more is not remembered."""
_BELOW = (f"{FRAGMENTS}/", VIEWS)
_ABOUT_THE_BODY = frozenset({"ETag", "Content-Length", "Content-Encoding", "Content-Type", "X-Request-Id"})
"""Headers that differ from answer to answer."""


@dataclass(frozen=True, slots=True)
class _Known:
    again: Again
    counted: Counted
    headers: Headers
    until: float


class PollCache:
    """WSGI middleware around the whole application, `app`. Safe for several threads.

    Args:
        monotonic: seconds that never go back. trusted_s: for how long a poll is let in without another look.
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
        self._known: OrderedDict[tuple[object, ...], _Known] = OrderedDict()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333): a poll that was let in before, or what the application says."""
        key, began = _key(environ), perf_counter()
        if key is None:
            return self._app(environ, start_response)
        with self._lock:
            known = self._known.get(key)
        if known is not None and self._monotonic() < known.until:
            content = self._again(known, began, environ, start_response)
            if content is not None:
                return content

        def begin(status: str, headers: Headers, *raised: object) -> Callable[[bytes], object]:
            again, counted = environ.get(AGAIN), environ.get(COUNTED)
            is_let_in = status[:3] in ("200", "304") and not any(name == "Set-Cookie" for name, _ in headers)
            if again is not None and counted is not None and is_let_in:
                kept = [(name, value) for name, value in headers if name not in _ABOUT_THE_BODY]
                self._remember(key, _Known(again, counted, kept, self._monotonic() + self._trusted_s))
            return start_response(status, headers, *raised)  # type: ignore[arg-type]

        return self._app(environ, begin)

    def _again(
        self, known: _Known, began: float, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes] | None:
        """Answer without the application, which takes ten times as long; `None` if that cannot be."""
        try:
            found = known.again(environ.get("HTTP_IF_NONE_MATCH", ""))
        except CerebroError:
            return None  # the application says it better
        if found is None:
            return None
        tag, body = found
        status = HTTPStatus.NOT_MODIFIED if body is None else HTTPStatus.OK
        headers = [*known.headers, ("ETag", f'W/"{tag}"'), ("X-Request-Id", secrets.token_hex(4))]
        if body is not None:
            headers += ("Content-Type", body.content_type), ("Content-Length", str(len(body.content)))
            headers += [("Content-Encoding", "gzip")] if body.is_packed else []
        start_response(f"{status.value} {status.phrase}", headers)
        self._metrics.count(known.counted, status, perf_counter() - began)
        return () if body is None else (body.content,)

    def forget(self) -> None:
        """Forget all admitted polls, after a sign-out: the next poll of each page is checked."""
        with self._lock:
            self._known.clear()

    def _remember(self, key: tuple[object, ...], known: _Known) -> None:
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > _MAX_POLLS:
                self._known.popitem(last=False)


def _key(environ: WSGIEnvironment) -> tuple[object, ...] | None:
    """Everything that an answer depends on but the tag; `None` for what is no poll."""
    path, query = environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")
    if environ.get("REQUEST_METHOD") != "GET" or not path.startswith(_BELOW):
        return None
    headers = tuple(
        (name, value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and name != "HTTP_IF_NONE_MATCH"
    )
    if sum(len(value) for _, value in headers) + len(path) + len(query) > _LONGEST:
        return None
    others = (environ.get(name, "") for name in ("REMOTE_ADDR", "wsgi.url_scheme", "CONTENT_LENGTH"))
    return path, query, *others, headers
