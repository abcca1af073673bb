"""Cached responses: 304 without work if nothing has changed, and one build for all viewers.

A poll sends the tag of the version that the browser has. A tag identifies the address, the version of the data and
this process. It is compared before anything is built. Bodies are cached (up to 8 MiB), so fifty viewers of one page
cost one page. Fragments (`tabs.tabs`) and the read API use it; whole pages are not cached, because they contain form
tokens.
"""

from __future__ import annotations

import gzip
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from flask import Response, request
from werkzeug.utils import get_content_type

from dispatcher.access.rights import rights_key

_MAX_BYTES = 8 << 20
"""Maximum total size of cached bodies."""
_MAX_BODIES = 2_000
"""Maximum number of cached bodies. Small bodies add the memory of their addresses."""
_LARGE = 2 << 20
"""Larger bodies are not cached."""
_MIN_GZIP_BYTES = 2_000
_FAST_LEVEL, _BEST_LEVEL = 4, 6
"""Levels of gzip. The higher one takes twice as long and saves a tenth of a page, a quarter of a figure."""
_FIGURE = 200_000
"""Bodies of at least this size in bytes are compressed at the higher level."""

REVALIDATE = "cerebro.revalidate"
"""Key in the WSGI environment of an answered request for its `Revalidate`."""

Revalidate = Callable[[str], tuple[str, "Body | None"] | None]
"""``If-None-Match`` -> (tag, body) of the current response to the same request.

The body is `None` if the caller has it. Returns `None` if the body is not built yet. Works without a request
context. Raises the errors of the underlying data.
"""

Build = Callable[[], str | bytes]


@dataclass(slots=True)
class Body:
    """Content of a response. While `content` is empty, the holder of `lock` is building it."""

    tag: str
    content_type: str
    content: bytes = b""
    is_packed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Answers:
    """Builds and caches responses. Safe for several threads."""

    def __init__(self) -> None:
        # Versions count from zero in each process, and the next process may have different templates.
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._bodies: OrderedDict[str, Body] = OrderedDict()

    def answer(self, version: Callable[[], object], build: Build, *, mimetype: str = "text/html") -> Response:
        """Return 304 if the caller has this version, else a cached or newly built response.

        Args:
            version: returns a value that changes whenever the result of `build` changes. It is called before the data
                is read, so a body may be newer than its tag, never older. Later calls happen without a request.
            build: builds the content for all users with equal `rights_key`, so it must not contain a form token.
        """
        takes_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        address = f"{request.full_path} {takes_gzip} {mimetype} {rights_key()}"

        def revalidate(if_none_match: str, build: Build | None = None) -> tuple[str, Body | None] | None:
            identity = f"{self._process} {address} {version()!r}"
            tag = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
            if f'"{tag}"' in if_none_match:
                return tag, None
            body = self._shared(address, Body(tag, get_content_type(mimetype, "utf-8")), build, takes_gzip)
            return (tag, body) if body is not None else None

        request.environ[REVALIDATE] = revalidate
        found = revalidate(request.headers.get("If-None-Match", ""), build)
        assert found is not None
        tag, body = found
        response = Response(mimetype=mimetype)
        if body is None:
            response.status_code = HTTPStatus.NOT_MODIFIED
        else:
            response.data = body.content
            if body.is_packed:
                response.headers["Content-Encoding"] = "gzip"
        response.set_etag(tag, weak=True)
        response.headers["Cache-Control"] = "private, no-cache"
        response.headers["Vary"] = "Accept-Encoding, Cookie, Authorization"
        return response

    def _shared(self, address: str, new: Body, build: Build | None, takes_gzip: bool) -> Body | None:
        """Return the cached body with the tag of `new`, else build `new` (`None` without `build`)."""
        with self._lock:
            body = self._bodies.get(address)
            if build is None:
                return body if body is not None and body.tag == new.tag and body.content else None
            if body is None or body.tag != new.tag:
                body = self._bodies[address] = new
            self._bodies.move_to_end(address)
        with body.lock:  # the first request builds, others wait
            if not body.content:
                try:
                    built = build()
                except BaseException:
                    self._forget(address, body)
                    raise
                content = built.encode() if isinstance(built, str) else built
                body.is_packed = takes_gzip and len(content) >= _MIN_GZIP_BYTES
                level = _BEST_LEVEL if len(content) >= _FIGURE else _FAST_LEVEL
                body.content = gzip.compress(content, level, mtime=0) if body.is_packed else content
                self._trim(address, body)
        return body

    def _forget(self, address: str, body: Body) -> None:
        with self._lock:
            if self._bodies.get(address) is body:
                del self._bodies[address]

    def _trim(self, address: str, body: Body) -> None:
        if len(body.content) > _LARGE:
            self._forget(address, body)
        with self._lock:
            total = sum(len(other.content) for other in self._bodies.values())
            while len(self._bodies) > 1 and (total > _MAX_BYTES or len(self._bodies) > _MAX_BODIES):
                total -= len(self._bodies.popitem(last=False)[1].content)
