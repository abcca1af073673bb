"""Light and dark figures differ only in colours, so a file stores only one theme."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from cerebro.figures import Theme, in_dark
from tests.figures.samples import gallery

DRAWN = {theme: gallery(theme) for theme in get_args(Theme)}


def tinted(part: Any, *, is_colour: bool = False) -> Any:
    """Recolour a figure as a report's script does."""
    if isinstance(part, dict):
        return {
            name: tinted(each, is_colour=bool(re.search(r"color(scale)?$", name)))
            for name, each in part.items()
        }
    if isinstance(part, list):
        return [tinted(each, is_colour=is_colour) for each in part]
    return in_dark(part) if is_colour and isinstance(part, str) else part


@pytest.mark.parametrize("name", DRAWN["light"])
def test_themes_differ_only_in_colours(name: str) -> None:
    """Each light colour maps to one dark colour."""
    assert tinted(DRAWN["light"][name]) == DRAWN["dark"][name]
    assert DRAWN["light"][name] != DRAWN["dark"][name]
