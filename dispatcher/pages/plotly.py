"""Serves the script that draws figures, from the installed `plotly` package: no other host is asked, so the page works
on a cluster without a way out. Its address has its version, so that browsers keep it for good.

The package is not imported: it takes a second and 50 MB, and only one of its files is wanted.
"""

from __future__ import annotations

import gzip
import threading
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from flask import Flask, Response, request, url_for

from dispatcher.services import Services

_A_YEAR_S = 31_536_000
_COMPRESSION = 6
"""A third of a second, once, for 1.4 MB instead of 4.8."""


class Script:
    """The installed script. Safe for several threads."""

    def __init__(self) -> None:
        self.version = version("plotly")
        self._lock = threading.Lock()

    @cached_property
    def path(self) -> Path:
        """Where it lies."""
        spec = find_spec("plotly")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("plotly is not installed, so no figure can be drawn")
        return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"

    def compressed(self) -> bytes:
        """It as gzip, made at the first call."""
        with self._lock:
            return self._compressed

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.path.read_bytes(), _COMPRESSION, mtime=0)


def register(app: Flask, services: Services) -> None:
    """Add the route, and its address as `plotly_url` for templates."""
    script = Script()
    # Else the first reader would wait for it. zlib lets other threads run meanwhile.
    services.reader.background.submit("plotly", lambda: len(script.compressed()) > 0)

    @app.get(f"/plotly.{script.version}.js", endpoint="plotly")
    def plotly() -> Response:
        is_small = request.accept_encodings.quality("gzip") > 0
        response = Response(
            script.compressed() if is_small else script.path.read_bytes(), mimetype="text/javascript"
        )
        if is_small:
            response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
        response.headers["Cache-Control"] = f"private, max-age={_A_YEAR_S}, immutable"
        return response

    @app.context_processor
    def address() -> dict[str, object]:
        return {"plotly_url": url_for("plotly")}
