"""Style sheets, scripts and icons, compressed once and cached by browsers under versioned addresses.

The files are next to their templates and share one namespace: ``/static/NAME``. Signed-in browsers also get two
files at ``/asset/NAME``: a style sheet with the colours of models, generated from the palette of the figures, and
Plotly's script from the installed package. No external host is needed, so pages work in clusters without internet
access.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from flask import Flask, Response, abort, request, url_for

from cerebro.client.reporting.plotting import plotly_path
from cerebro.figures.palette import DASHES, STYLES, Theme, colour, dash

_A_YEAR_S = 31_536_000
_MIN_GZIP_BYTES = 1_000
_PLOTLY_LEVEL = 6
"""Takes a third of a second once, and reduces 4.8 MB to 1.4 MB."""
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PALETTE, _PLOTLY = "palette.css", "plotly.js"
_GAPS = dict(zip(DASHES, ("none", "6 3", "2 2", "6 2 2 2"), strict=True))
"""Plotly's name of a dash -> SVG's."""


class Statics:
    """Static files of all folders below `root`, read at the start. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in root.rglob("*") if path.suffix in _KINDS}
        contents = self._files | {_PALETTE: palette().encode()}
        self._versions = {name: sha256(content).hexdigest()[:12] for name, content in contents.items()}
        self._versions[_PLOTLY] = version("plotly")
        self._packed = {
            name: gzip.compress(content, mtime=0)
            for name, content in contents.items()
            if len(content) >= _MIN_GZIP_BYTES
        }

    def install(self, app: Flask) -> None:
        """Add the routes."""
        app.add_url_rule("/static/<path:filename>", "static", self._send)
        app.add_url_rule("/asset/<any('palette.css', 'plotly.js'):filename>", "asset", self._send)

    def address(self, name: str) -> str:
        """Return the address of a file. It contains the version, so browsers may cache the file forever."""
        return url_for("static" if name in self._files else "asset", filename=name, v=self._versions[name])

    def _send(self, filename: str) -> Response:
        if request.endpoint == "static" and filename not in self._files:
            abort(404)
        packed = plotly() if filename == _PLOTLY else self._packed.get(filename)
        response = Response(mimetype=_KINDS[Path(filename).suffix])
        if packed is None:
            response.data = self._files[filename]
        elif request.accept_encodings.quality("gzip") > 0:
            response.data = packed
            response.headers["Content-Encoding"] = "gzip"
        else:
            response.data = gzip.decompress(packed)
        if packed is not None:
            response.headers["Vary"] = "Accept-Encoding"
        # A page of an earlier release requests another version, so its browser must not cache this one.
        is_current = request.args.get("v") == self._versions[filename]
        response.headers["Cache-Control"] = (
            f"private, max-age={_A_YEAR_S}, immutable" if is_current else "private, no-cache"
        )
        response.set_etag(self._versions[filename], weak=True)
        response.make_conditional(request)
        return response


@cache
def plotly() -> bytes:
    """Return Plotly's script as gzip. Importing the package would take a second and 50 MB."""
    return gzip.compress(plotly_path().read_bytes(), _PLOTLY_LEVEL, mtime=0)


def palette() -> str:
    """Return CSS with a class ``line-INDEX`` for each pair of colour and dash."""
    rules = [f".dot{{fill:none;stroke-width:3}}{_colours('light')}"]
    rules += [f".line-{index}{{stroke-dasharray:{_GAPS[dash(index)]}}}" for index in range(STYLES)]
    rules.append(f"@media (prefers-color-scheme:dark){{{_colours('dark')}}}")
    return "\n".join(rules)


def _colours(theme: Theme) -> str:
    return "".join(f".line-{index}{{stroke:{colour(index, theme)}}}" for index in range(STYLES))
