"""Style sheets, scripts and icons: packed once, and kept by browsers under addresses that change with their content."""

from __future__ import annotations

import gzip
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from flask import Flask, Response, request, url_for

_A_DAY_S = 86_400
_WORTH_PACKING = 1_000


class Statics:
    """The files of one folder, as they were when the process began. Safe for several threads.

    Args:
        folder: of `Flask.static_folder`.
    """

    def __init__(self, folder: Path) -> None:
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._versions = {name: sha256(content).hexdigest()[:12] for name, content in contents.items()}
        self._packed = {
            name: gzip.compress(content, mtime=0)
            for name, content in contents.items()
            if len(content) >= _WORTH_PACKING
        }

    def install(self, app: Flask) -> None:
        """Answer for Flask's own route."""
        app.config["SEND_FILE_MAX_AGE_DEFAULT"] = _A_DAY_S
        send = app.send_static_file

        def static(filename: str) -> Response:
            response = send(filename)
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

        app.view_functions["static"] = static

    def address(self, name: str) -> str:
        """Of a file. Its version is in it, so that browsers may keep the file and still see the next release's."""
        return url_for("static", filename=name, v=self._versions[name])
