"""Addresses of pages, figures and the read API, for routes and templates.

Also recognizes a *fragment*: the live part of a page, which a script loads below ``/fragments``. `changed` and the
functions above it read the current request; the functions below are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from flask import request
from werkzeug.routing import BaseConverter

FRAGMENTS = "/fragments"
"""Prefix of a page's path for its live part only."""


class NameConverter(BaseConverter):
    """Path parameter with the syntax of the contract's `Name`. Other values never reach the store."""

    regex = r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?"
    part_isolating = True


def is_fragment() -> bool:
    """True if the request is for a page's live part only."""
    return request.path.startswith(f"{FRAGMENTS}/")


def path() -> str:
    """Return the page's path, also for a fragment."""
    return request.path.removeprefix(FRAGMENTS)


def page_number() -> int:
    """Return the parameter ``page``, or 1 if it is not a positive number."""
    page = request.args.get("page", "1")
    return max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1


def parameter(name: str) -> str:
    """Return a parameter of this address, or the values of a repeated one joined by commas."""
    return ",".join(value for value in request.args.getlist(name) if value)


def changed(**changes: object) -> str:
    """Return this page's address with changed parameters. `None` and an empty text remove a parameter."""
    unchanged = [(name, value) for name, value in request.args.items(multi=True) if name not in changes]
    return _address(path(), [*unchanged, *changes.items()])


def api_url(experiment: str, below: str, **parameters: object) -> str:
    """Return an address of the read API below an experiment, without empty parameters."""
    return views_url(f"experiments/{experiment}/{below}", **parameters)


def views_url(below: str, **parameters: object) -> str:
    """Return an address of the read API, without empty parameters."""
    return _address(f"/api/views/{below}", list(parameters.items()))


def compare_pick(experiment: str, run: str, models: Iterable[str]) -> str:
    """Return the parameter ``pick`` of the page Compare for models of one run."""
    return ",".join(f"{experiment}/{run}/{model}" for model in models)


def figure_url(experiment: str, figure: str, **parameters: object) -> str:
    """Return the address of a figure."""
    return api_url(experiment, f"figures/{figure}", **parameters)


def static_svg_url(figure: str, theme: str, height: int) -> str:
    """Return the address of a line figure as SVG, from its `figure_url`."""
    start, _, query = figure.partition("?")
    return f"{start}.svg?{query}{'&' if query else ''}theme={theme}&height={height}"


def _address(start: str, parameters: list[tuple[str, object]]) -> str:
    texts = [(name, str(value)) for name, value in parameters if value is not None and value is not False]
    query = urlencode([(name, value) for name, value in texts if value], safe=",:")
    return f"{start}?{query}" if query else start
