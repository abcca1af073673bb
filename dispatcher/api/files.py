"""Read-only files of the volumes for clients outside the cluster: ``GET /api/volumes/<volume>/<path>``.

Also called by the download routes of the tabs Checkpoints and Logs. User code writes to these volumes, so a path may
contain hostile links. It is opened folder by folder without following links, which leaves no race. A checkpoint with
a frozen-weights file is sent as one file. Further limits: a fixed number of transfers at once
(`Capacity.sent_files`), then 503. Training data is not served: it stays on its worker.
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

from cerebro.data.files.base_file import BasedFile, UnreadableLayoutError, joined
from cerebro.data.files.safe_open import ABSENT, open_below
from cerebro.runtime.volumes import Volumes
from dispatcher.api.downloads import Downloads
from dispatcher.api.gateway import PREFIX, problem

_PIECE = 256 << 10
_FIRST_ERROR_STATUS = 400
_PARTIAL_CONTENT = 206
_SUCCESS_STATUSES = (200, _PARTIAL_CONTENT)


class Files:
    """File server with at most `at_once` transfers, because each occupies a thread. Safe for several threads.

    Args:
        note: records a download in the audit log, once per download; `None` without users.
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
        """Return a file that a browser saves as `name`. The browser never displays it, whatever its content."""
        response = self.view(volume, path)
        if response.status_code < _FIRST_ERROR_STATUS:
            response.headers.set("Content-Disposition", "attachment", filename=name)
        return response

    def view(self, volume: str, path: str) -> Response:
        """Return a file or one range.

        Answers 404 for everything except plain files of the volume, and 422 for a checkpoint that cannot be
        assembled.
        """
        if volume not in self._roots:
            abort(404)
        if not self._slots.acquire(blocking=False):
            return problem(503, "StoreUnavailableError", "too many files are being sent at once: try again")
        root, folder = self._roots[volume], path.rpartition("/")[0]
        try:
            opened = open_below(root, path)
            file: io.BufferedReader | BasedFile = opened
            found = os.fstat(opened.fileno())
            size = found.st_size
            if volume == "checkpoints":
                combined = joined(opened, lambda base: open_below(root, f"{folder}/{base}"))
                if combined is not None:
                    file, size = combined, combined.size
        except OSError as error:
            self._slots.release()
            if isinstance(error, UnreadableLayoutError):
                return problem(422, "CheckpointCorruptError", f"{volume}/{path}: {error.strerror}")
            if error.errno not in ABSENT:
                return problem(503, "StoreUnavailableError", f"{volume}/{path}: {error.strerror}")
            return problem(404, "NotFoundError", f"no file {path!r} on the volume {volume!r}")
        body = _FileBody(file, self._slots, size)
        response = Response(body, mimetype="application/octet-stream", direct_passthrough=True)
        response = _with_range(response, found, size)
        if response.status_code in _SUCCESS_STATUSES and request.method == "GET":
            self._record(f"{volume}/{path}", response)
        return response

    def _record(self, path: str, response: Response) -> None:
        if self._note is None:
            return
        is_piece = response.status_code == _PARTIAL_CONTENT
        if self._downloads.is_new(str(g.get("name", "")), path, is_piece=is_piece):
            self._note(f"downloaded {path}")


class _FileBody(FileWrapper):
    """Response body: a file in pieces. Frees its slot when closed.

    Args:
        size: bytes promised in the header; a log may grow during the transfer.
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
        """Close the file. The server calls this in every case."""
        if not self.file.closed:
            super().close()
            self._slots.release()


def _with_range(response: Response, found: os.stat_result, size: int) -> Response:
    """Add size and ETag, and cut the response to the requested range."""
    response.content_length = size
    # Files are replaced as a whole, never changed in place; the same holds for frozen-weights files. Only logs grow.
    response.set_etag(generate_etag(f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}".encode()))
    try:
        response.make_conditional(request, accept_ranges=True, complete_length=size)
    except RequestedRangeNotSatisfiable:
        response.close()
        raise
    return response
