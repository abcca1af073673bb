"""Rules for every figure: valid Plotly JSON, escaped names, and a text description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import plotly.graph_objects as go
import pytest

from cerebro.figures import Figure, Theme, description, table
from cerebro.figures.frame import MAX_ROWS
from tests.figures.samples import gallery

DRAWN = {theme: gallery(theme) for theme in get_args(Theme)}
EVERY = [
    pytest.param(figure, id=f"{theme}-{name}")
    for theme, found in DRAWN.items()
    for name, figure in found.items()
]

SHOWN = {"text", "hovertext", "hovertemplate", "name", "ticktext", "legendgroup"}
"""Fields that Plotly renders as text."""


def drawn_texts(part: Any, field: str = "") -> Iterator[str]:
    """Collect all text that Plotly parses for markup."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key not in ("meta", "customdata"):
                yield from drawn_texts(value, key if not isinstance(value, list) or key in SHOWN else field)
    elif isinstance(part, list):
        for value in part:
            yield from drawn_texts(value, field)
    elif isinstance(part, str) and field in SHOWN:
        yield part


@pytest.mark.parametrize("figure", EVERY)
def test_plotly_knows_every_field(figure: Figure) -> None:
    """The Python package validates names and values; its default template is not used."""
    assert len(go.Figure(figure).data) == len(figure["data"])


@pytest.mark.parametrize("figure", EVERY)
def test_a_figure_is_plain_json(figure: Figure) -> None:
    """Without infinity and NaN, which browsers cannot parse."""
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure


@pytest.mark.parametrize("figure", EVERY)
def test_names_of_users_are_neither_markup_nor_templates(figure: Figure) -> None:
    """The only element is our line break."""
    for words in drawn_texts(figure):
        assert "<" not in words.replace("<br>", "").replace("<extra></extra>", "")
        assert "%{x}" not in words.replace("%{x:", "").replace("<br>%{x}<extra>", "")


@pytest.mark.parametrize("figure", EVERY)
def test_a_figure_has_a_text_description(figure: Figure) -> None:
    """For screen readers, with a table unless it is empty."""
    assert description(figure).endswith((".", ")"))
    columns, rows, _ = table(figure)
    assert all(len(row) == len(columns) for row in rows)
    assert bool(rows) is bool(figure["data"])
    assert len(rows) <= MAX_ROWS
