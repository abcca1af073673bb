"""Style sheets, scripts and icons: packed once, and kept by browsers for good under addresses with their version.

They lie beside the templates that name them, and have one address for all: ``/static/NAME``. Two more are at
``/asset/NAME`` for those who have signed in: the colours of models, made from the figures' palette, so that a model
looks the same in a table as in every figure; and the script that draws figures, a file of the installed `plotly`
package. No other host is asked, so the page works on a cluster without a way out.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from flask import Flask, Response, abort, request, url_for

from cerebro.client.reporting.plotting import plotly_path
from cerebro.figures.palette import DASHES, LOOKS, Theme, colour, dash

_A_YEAR_S = 31_536_000
_WORTH_PACKING = 1_000
_PLOTLY_LEVEL = 6
"""A third of a second, once, for 1.4 MB instead of 4.8."""
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PALETTE, _PLOTLY = "palette.css", "plotly.js"
_GAPS = dict(zip(DASHES, ("none", "6 3", "2 2", "6 2 2 2"), strict=True))
"""Plotly's name of a dash -> SVG's."""


class Statics:
    """The files of all folders below one, as they were when the process began. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self._open = {path.name: path.read_bytes() for path in root.rglob("*") if path.suffix in _KINDS}
        contents = self._open | {_PALETTE: palette().encode()}
        self._versions = {name: sha256(content).hexdigest()[:12] for name, content in contents.items()}
        self._versions[_PLOTLY] = version("plotly")
        self._packed = {
            name: gzip.compress(content, mtime=0)
            for name, content in contents.items()
            if len(content) >= _WORTH_PACKING
        }

    def install(self, app: Flask) -> None:
        """Add the routes."""
        app.add_url_rule("/static/<path:filename>", "static", self._send)
        app.add_url_rule("/asset/<any('palette.css', 'plotly.js'):filename>", "asset", self._send)

    def address(self, name: str) -> str:
        """Of a file. Its version is in it, so that browsers may keep the file and still see the next release's."""
        return url_for("static" if name in self._open else "asset", filename=name, v=self._versions[name])

    def _send(self, filename: str) -> Response:
        if request.endpoint == "static" and filename not in self._open:
            abort(404)
        packed = plotly() if filename == _PLOTLY else self._packed.get(filename)
        response = Response(mimetype=_KINDS[Path(filename).suffix])
        if packed is None:
            response.data = self._open[filename]
        elif request.accept_encodings.quality("gzip") > 0:
            response.data = packed
            response.headers["Content-Encoding"] = "gzip"
        else:
            response.data = gzip.decompress(packed)
        if packed is not None:
            response.headers["Vary"] = "Accept-Encoding"
        # A page of an earlier release asks for its own version: what it is given must not be kept under that name.
        is_meant = request.args.get("v") == self._versions[filename]
        response.headers["Cache-Control"] = (
            f"private, max-age={_A_YEAR_S}, immutable" if is_meant else "private, no-cache"
        )
        response.set_etag(self._versions[filename], weak=True)
        response.make_conditional(request)
        return response


@cache
def plotly() -> bytes:
    """The script that draws figures, as gzip. The package is not imported: it takes a second and 50 MB."""
    return gzip.compress(plotly_path().read_bytes(), _PLOTLY_LEVEL, mtime=0)


def palette() -> str:
    """A class ``line-INDEX`` for each pair of a colour and a dash."""
    rules = [f".dot{{fill:none;stroke-width:3}}{_colours('light')}"]
    rules += [f".line-{index}{{stroke-dasharray:{_GAPS[dash(index)]}}}" for index in range(LOOKS)]
    rules.append(f"@media (prefers-color-scheme:dark){{{_colours('dark')}}}")
    return "\n".join(rules)


def _colours(theme: Theme) -> str:
    return "".join(f".line-{index}{{stroke:{colour(index, theme)}}}" for index in range(LOOKS))
