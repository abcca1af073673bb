"""Answers that cost nothing when nothing has changed, and are built once however many look.

Whoever polls sends back the tag of what it has. A tag stands for the address that was asked for, for the version of the
data behind it, and for this process; it is compared before anything is built. What was built is kept for a while, so
that fifty viewers of one page cost one page.
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

from dispatcher.access.rights import seen_as

_MAX_BYTES = 8 << 20
"""Of all bodies that are kept."""
_MAX_BODIES = 2_000
"""Small ones are many, and each has its address beside it."""
_LARGE = 2 << 20
"""A body of more is not kept."""
_WORTH_PACKING = 2_000
_PACKING, _THOROUGH = 4, 6
"""Levels of gzip: the higher one takes twice as long, for a tenth less of a page and a quarter less of a figure."""
_FIGURE = 200_000
"""Bytes of a body that is packed thoroughly."""

AGAIN = "cerebro.again"
"""Where the environment of a request holds its `Again`, once it was answered."""

Again = Callable[[str], tuple[str, "Body | None"] | None]
"""``If-None-Match`` -> the tag of the answer to the same request now, with the body unless the caller has it; `None`
if it is not built yet. Needs no request; raises the errors of the data behind it."""

Build = Callable[[], str | bytes]


@dataclass(slots=True)
class Body:
    """What is sent. Nothing yet while `content` is empty: whoever holds `lock` builds it."""

    tag: str
    content_type: str
    content: bytes = b""
    is_packed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Answers:
    """Makes answers. Safe for several threads."""

    def __init__(self) -> None:
        # The next process may be of another program, which builds other pages; and it counts versions from zero.
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._bodies: OrderedDict[str, Body] = OrderedDict()

    def answer(self, version: Callable[[], object], build: Build, *, mimetype: str = "text/html") -> Response:
        """304 if the caller has this version of this address; else what `build` makes, from the kept ones if it can.

        Args:
            version: makes what differs whenever `build` would make something else. It is asked before the data is
                looked at: a body may be newer than its tag says, never older. Called again without a request.
            build: makes what everybody may be given of whom `seen_as` says the same: no form's token is in it.
        """
        takes_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        address = f"{request.full_path} {takes_gzip} {mimetype} {seen_as()}"

        def again(if_none_match: str, build: Build | None = None) -> tuple[str, Body | None] | None:
            known = f"{self._process} {address} {version()!r}"
            tag = hashlib.blake2b(known.encode(), digest_size=12).hexdigest()
            if f'"{tag}"' in if_none_match:
                return tag, None
            body = self._shared(address, Body(tag, get_content_type(mimetype, "utf-8")), build, takes_gzip)
            return (tag, body) if body is not None else None

        request.environ[AGAIN] = again
        found = again(request.headers.get("If-None-Match", ""), build)
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
        """The body of the tag of `new`; if it is not there, `new` when it is built, or `None` if `build` is."""
        with self._lock:
            body = self._bodies.get(address)
            if build is None:
                return body if body is not None and body.tag == new.tag and body.content else None
            if body is None or body.tag != new.tag:
                body = self._bodies[address] = new
            self._bodies.move_to_end(address)
        with body.lock:  # the first one builds, the others wait for it
            if not body.content:
                try:
                    built = build()
                except BaseException:
                    self._forget(address, body)
                    raise
                content = built.encode() if isinstance(built, str) else built
                body.is_packed = takes_gzip and len(content) >= _WORTH_PACKING
                level = _THOROUGH if len(content) >= _FIGURE else _PACKING
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
            kept = sum(len(other.content) for other in self._bodies.values())
            while len(self._bodies) > 1 and (kept > _MAX_BYTES or len(self._bodies) > _MAX_BODIES):
                kept -= len(self._bodies.popitem(last=False)[1].content)
