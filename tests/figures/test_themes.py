"""A figure of the light theme becomes that of the dark one by its colours alone: a file needs to hold one of them."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from cerebro.figures import Theme, in_dark
from tests.figures.samples import gallery

DRAWN = {theme: gallery(theme) for theme in get_args(Theme)}


def tinted(part: Any, *, is_colour: bool = False) -> Any:
    """As the script of a report does it."""
    if isinstance(part, dict):
        return {
            name: tinted(each, is_colour=bool(re.search(r"color(scale)?$", name)))
            for name, each in part.items()
        }
    if isinstance(part, list):
        return [tinted(each, is_colour=is_colour) for each in part]
    return in_dark(part) if is_colour and isinstance(part, str) else part


@pytest.mark.parametrize("name", DRAWN["light"])
def test_a_figure_differs_between_themes_in_colours_alone(name: str) -> None:
    """Each colour of the light theme has one place in the dark one."""
    assert tinted(DRAWN["light"][name]) == DRAWN["dark"][name]
    assert DRAWN["light"][name] != DRAWN["dark"][name]
