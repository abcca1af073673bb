"""Files of the volumes for clients outside the cluster, read-only: ``GET /api/volumes/<volume>/<path>``.

User code writes to these volumes, so nothing in them is trusted: a path is walked folder by folder from the volume's
root without following links, which leaves nothing to race for. A checkpoint with a base is sent as a whole. Training
data is not served: it stays where it is.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from typing import IO, cast

from flask import Flask, Response, abort, g, request
from werkzeug.exceptions import RequestedRangeNotSatisfiable
from werkzeug.http import generate_etag
from werkzeug.wsgi import FileWrapper

from cerebro.data.based import BasedFile, UnreadableLayoutError, joined
from cerebro.data.safe_open import ABSENT, open_below
from cerebro.runtime.volumes import Volumes
from dispatcher.api.downloads import Downloads
from dispatcher.api.gateway import PREFIX, problem

_PIECE = 256 << 10
_FAILED = 400
_PIECE_SENT = 206
_SENT = (200, _PIECE_SENT)


class Files:
    """Serves files. Safe for several threads; at most `at_once` are sent at a time, since each occupies a thread.

    Args:
        note: told of each download, once, where there are users.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        volumes: Volumes,
        at_once: int,
        note: Callable[[str], None] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note, self._downloads = note, Downloads(monotonic)
        self._roots = {
            "checkpoints": volumes.checkpoints,
            "shared": volumes.shared,
            "metrics": volumes.metrics,
            "logs": volumes.logs,
        }
        self._slots = threading.BoundedSemaphore(at_once)

    def install(self, app: Flask) -> None:
        """Add the route."""
        app.add_url_rule(f"{PREFIX}/volumes/<volume>/<path:path>", "volumes", self.view, methods=["GET"])

    def download(self, volume: str, path: str, name: str) -> Response:
        """A file for a browser, which saves it under `name`; never shown as a page, whatever is in it."""
        response = self.view(volume, path)
        if response.status_code < _FAILED:
            response.headers.set("Content-Disposition", "attachment", filename=name)
        return response

    def view(self, volume: str, path: str) -> Response:
        """A file, whole or one range of it; 404 for whatever is no plain file on that volume, 422 for a checkpoint that
        cannot be put together."""
        if volume not in self._roots:
            abort(404)
        if not self._slots.acquire(blocking=False):
            return problem(503, "StoreUnavailableError", "too many files are being sent at once: try again")
        root, folder = self._roots[volume], path.rpartition("/")[0]
        try:
            own = open_below(root, path)
            file: io.BufferedReader | BasedFile = own
            found = os.fstat(own.fileno())
            size = found.st_size
            if volume == "checkpoints":
                whole = joined(own, lambda base: open_below(root, f"{folder}/{base}"))
                if whole is not None:
                    file, size = whole, whole.size
        except OSError as error:
            self._slots.release()
            if isinstance(error, UnreadableLayoutError):
                return problem(422, "CheckpointCorruptError", f"{volume}/{path}: {error.strerror}")
            if error.errno not in ABSENT:
                return problem(503, "StoreUnavailableError", f"{volume}/{path}: {error.strerror}")
            return problem(404, "NotFoundError", f"no file {path!r} on the volume {volume!r}")
        body = _Sending(file, self._slots, size)
        response = Response(body, mimetype="application/octet-stream", direct_passthrough=True)
        response = _described(response, found, size)
        if response.status_code in _SENT and request.method == "GET":
            self._tell(f"{volume}/{path}", response)
        return response

    def _tell(self, path: str, response: Response) -> None:
        if self._note is None:
            return
        is_piece = response.status_code == _PIECE_SENT
        if self._downloads.is_new(str(g.get("name", "")), path, is_piece=is_piece):
            self._note(f"downloaded {path}")


class _Sending(FileWrapper):
    """The body of an answer: a file in pieces; its slot is free again once it is closed.

    Args:
        size: bytes of the file that were promised: a log may grow meanwhile.
    """

    def __init__(
        self, file: io.BufferedReader | BasedFile, slots: threading.BoundedSemaphore, size: int
    ) -> None:
        super().__init__(cast(IO[bytes], file))
        self._slots, self._size = slots, size

    def __next__(self) -> bytes:
        self.buffer_size = min(_PIECE, max(0, self._size - self.file.tell()))
        return super().__next__()

    def close(self) -> None:
        """Called by the server in every case."""
        if not self.file.closed:
            super().close()
            self._slots.release()


def _described(response: Response, found: os.stat_result, size: int) -> Response:
    """With size and identity, and cut to the range that was asked for."""
    response.content_length = size
    # Files here are replaced as a whole, never changed in place (nor is the base of one); but for logs, which grow.
    response.set_etag(generate_etag(f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}".encode()))
    try:
        response.make_conditional(request, accept_ranges=True, complete_length=size)
    except RequestedRangeNotSatisfiable:
        response.close()
        raise
    return response
