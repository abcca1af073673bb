"""Answers that cost nothing when nothing has changed, and are built once however many look.

Whoever polls sends back the tag of what it has. A tag stands for the address that was asked for, for the version of the
data behind it, and for the version of this program; it is compared before anything is built. What was built is kept for
a while, so fifty viewers of one page cost one page.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flask import Response, request

_MAX_BYTES = 8 << 20
"""Of all bodies that are kept."""
_MAX_BODIES = 2_000
"""Small ones are many, and each has its address beside it."""
_LARGE = 2 << 20
"""A body of more is not kept."""
_WORTH_PACKING = 2_000
_PACKING = 4
"""Level of gzip: higher ones take three times as long for a tenth less."""


@dataclass(slots=True)
class _Body:
    tag: str
    content: bytes = b""
    is_packed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Answers:
    """Makes answers. Safe for several threads.

    Args:
        program: stands for the version of this program: another one builds other pages of the same data.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._bodies: OrderedDict[str, _Body] = OrderedDict()

    def answer(
        self,
        version: tuple[object, ...],
        build: Callable[[], str | bytes],
        *,
        mimetype: str = "text/html",
    ) -> Response:
        """304 if the caller has this version of this address; else what `build` makes, from the kept ones if it can.

        Args:
            version: differs whenever `build` would make something else. It is looked at before the data is: a body may
                be newer than its tag says, never older.
            build: makes what everybody may be given: no form's token is in it.
        """
        takes_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
        address = f"{request.full_path} {takes_gzip} {mimetype}"
        tag = self._tag(address, version)
        if tag in request.if_none_match.as_set(include_weak=True):
            response = Response(status=304)
        else:
            body = self._shared(address, tag, build, takes_gzip)
            response = Response(body.content, mimetype=mimetype)
            if body.is_packed:
                response.headers["Content-Encoding"] = "gzip"
        response.set_etag(tag, weak=True)
        response.headers["Cache-Control"] = "private, no-cache"
        response.headers["Vary"] = "Accept-Encoding, Cookie, Authorization"
        return response

    def _tag(self, address: str, version: tuple[object, ...]) -> str:
        return hashlib.blake2b(f"{self._program} {address} {version!r}".encode(), digest_size=12).hexdigest()

    def _shared(self, address: str, tag: str, build: Callable[[], str | bytes], takes_gzip: bool) -> _Body:
        with self._lock:
            body = self._bodies.get(address)
            if body is None or body.tag != tag:
                body = self._bodies[address] = _Body(tag)
            self._bodies.move_to_end(address)
        with body.lock:  # the first one builds, the others wait for it
            if not body.content:
                try:
                    content = _bytes(build())
                except BaseException:
                    self._forget(address, body)
                    raise
                body.is_packed = takes_gzip and len(content) >= _WORTH_PACKING
                body.content = gzip.compress(content, _PACKING, mtime=0) if body.is_packed else content
                self._trim(address, body)
        return body

    def _forget(self, address: str, body: _Body) -> None:
        with self._lock:
            if self._bodies.get(address) is body:
                del self._bodies[address]

    def _trim(self, address: str, body: _Body) -> None:
        if len(body.content) > _LARGE:
            self._forget(address, body)
        with self._lock:
            kept = sum(len(other.content) for other in self._bodies.values())
            while len(self._bodies) > 1 and (kept > _MAX_BYTES or len(self._bodies) > _MAX_BODIES):
                kept -= len(self._bodies.popitem(last=False)[1].content)


def program_version(folder: Path) -> str:
    """A hash of the program and templates below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".html"):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
