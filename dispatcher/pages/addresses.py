"""Addresses of pages, of their figures and of the read API, as templates write them."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import request
from werkzeug.routing import BaseConverter

FRAGMENTS = "/fragments"
"""Before a page's path: only its live part."""


class NameConverter(BaseConverter):
    """The contract's `Name`: nothing else of a URL reaches the store."""

    regex = r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?"
    part_isolating = True


def is_fragment() -> bool:
    """Whether only the live part was asked for."""
    return request.path.startswith(f"{FRAGMENTS}/")


def path() -> str:
    """Of the page, whether it was asked for or its fragment."""
    return request.path.removeprefix(FRAGMENTS)


def page_number() -> int:
    """The parameter ``page``, from 1; 1 if it is no such number."""
    page = request.args.get("page", "1")
    return max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1


def given(name: str) -> str:
    """A parameter of this address; of a repeated one all values, commas between."""
    return ",".join(value for value in request.args.getlist(name) if value)


def changed(**changes: object) -> str:
    """This view's address with some of its parameters changed; `None` and the empty text remove one."""
    kept = [(name, value) for name, value in request.args.items(multi=True) if name not in changes]
    return _address(path(), [*kept, *changes.items()])


def api_url(experiment: str, below: str, **parameters: object) -> str:
    """An address of the read API below an experiment; parameters that are empty are left out."""
    return _address(f"/api/views/experiments/{experiment}/{below}", list(parameters.items()))


def figure_url(experiment: str, figure: str, **parameters: object) -> str:
    """Address of a figure."""
    return api_url(experiment, f"figures/{figure}", **parameters)


def static_svg_url(figure: str, theme: str, height: int) -> str:
    """Address of a figure of lines as a picture, from its `figure_url`."""
    start, _, query = figure.partition("?")
    return f"{start}.svg?{query}{'&' if query else ''}theme={theme}&height={height}"


def _address(start: str, parameters: list[tuple[str, object]]) -> str:
    given = [(name, str(value)) for name, value in parameters if value is not None and value is not False]
    query = urlencode([(name, value) for name, value in given if value], safe=",:")
    return f"{start}?{query}" if query else start
