"""Bodies of ASGI requests, copied to a file with a limit on their size.

`wsgi` and kvs_api's application read bodies with it. Time limits for a slow body are in `serving`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import IO, Any


class DisconnectedError(Exception):
    """The caller closed its connection before its body had arrived."""


class TooLargeError(Exception):
    """A body is larger than allowed."""


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the ``Content-Length`` of a request; `None` if it has a body of unknown length."""
    known = dict(headers)
    if b"transfer-encoding" in known:
        return None
    return int(known.get(b"content-length", b"0"))


async def read_body(receive: Callable[[], Awaitable[Any]], into: IO[bytes], max_bytes: int) -> None:
    """Copy the body of a request to a file.

    Raises:
        DisconnectedError: the caller closed its connection first.
        TooLargeError: it has more than `max_bytes` bytes.
    """
    size, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        piece = message.get("body", b"")
        size, has_more = size + len(piece), message.get("more_body", False)
        if size > max_bytes:
            raise TooLargeError
        into.write(piece)
