"""Serves the colours of models as a style sheet, made from the figures' palette: a model looks the same in a table as
in every figure, and the palette has one owner."""

from __future__ import annotations

from hashlib import sha256

from flask import Flask, Response, url_for

from cerebro.figures.palette import DASHES, NAMED, Theme, colour, dash
from dispatcher.services import Services

_A_YEAR_S = 31_536_000
_GAPS = dict(zip(DASHES, ("none", "6 3", "2 2", "6 2 2 2"), strict=True))
"""Plotly's name of a dash -> SVG's."""


def style_sheet() -> str:
    """A class ``line-INDEX`` for each model with a colour of its own, and ``line-rest`` for all others."""
    rules = [f".dot{{fill:none;stroke-width:3}}{_colours('light')}"]
    rules += [f".line-{index}{{stroke-dasharray:{_GAPS[dash(index)]}}}" for index in range(NAMED)]
    rules.append(f"@media (prefers-color-scheme:dark){{{_colours('dark')}}}")
    return "\n".join(rules)


def register(app: Flask, services: Services) -> None:
    """Add the route, and its address as `palette_url` for templates."""
    content = style_sheet()
    version = sha256(content.encode()).hexdigest()[:12]

    @app.get(f"/palette.{version}.css", endpoint="palette")
    def palette() -> Response:
        response = Response(content, mimetype="text/css")
        response.headers["Cache-Control"] = f"private, max-age={_A_YEAR_S}, immutable"
        return response

    @app.context_processor
    def address() -> dict[str, object]:
        return {"palette_url": url_for("palette")}


def _colours(theme: Theme) -> str:
    rest = f".line-rest{{stroke:{colour(NAMED, theme)}}}"
    return "".join(f".line-{index}{{stroke:{colour(index, theme)}}}" for index in range(NAMED)) + rest
