"""Style sheets, scripts and icons: packed once, and kept by browsers under addresses that change with their content.

They lie beside the templates that name them, and have one address for all: ``/static/NAME``.
"""

from __future__ import annotations

import gzip
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from flask import Flask, Response, abort, request, send_file, url_for

_A_DAY_S = 86_400
_WORTH_PACKING = 1_000
_KINDS = frozenset({".css", ".js", ".svg"})


class Statics:
    """The files of all folders below one, as they were when the process began. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self.paths = {path.name: path for path in root.rglob("*") if path.suffix in _KINDS}
        contents = {name: path.read_bytes() for name, path in self.paths.items()}
        self._versions = {name: sha256(content).hexdigest()[:12] for name, content in contents.items()}
        self._packed = {
            name: gzip.compress(content, mtime=0)
            for name, content in contents.items()
            if len(content) >= _WORTH_PACKING
        }

    def install(self, app: Flask) -> None:
        """Add the route."""
        app.add_url_rule("/static/<path:filename>", "static", self._send)

    def address(self, name: str) -> str:
        """Of a file. Its version is in it, so that browsers may keep the file and still see the next release's."""
        return url_for("static", filename=name, v=self._versions[name])

    def _send(self, filename: str) -> Response:
        if filename not in self.paths:
            abort(404)
        response = send_file(self.paths[filename], max_age=_A_DAY_S)
        packed = self._packed.get(filename)
        if packed is None or response.status_code != HTTPStatus.OK:
            return response
        response.headers["Vary"] = "Accept-Encoding"
        if request.accept_encodings.quality("gzip") > 0:
            response.close()  # the file
            response.direct_passthrough = False
            response.data = packed
            response.headers["Content-Encoding"] = "gzip"
            response.set_etag(response.get_etag()[0] or "", weak=True)  # the same file, in other bytes
        return response
