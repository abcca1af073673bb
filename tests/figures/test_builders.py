"""What holds for every figure: Plotly takes it, nobody's name is markup, and there are words for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import plotly.graph_objects as go
import pytest

from cerebro.figures import CONFIG, Figure, Theme, description, table
from cerebro.figures.frame import MOST_ROWS, cut, duration, number, text
from cerebro.figures.palette import THEME_COLORS
from tests.figures.samples import NASTY, gallery

DRAWN = {theme: gallery(theme) for theme in get_args(Theme)}
EVERY = [
    pytest.param(figure, id=f"{theme}-{name}")
    for theme, found in DRAWN.items()
    for name, figure in found.items()
]

SHOWN = {"text", "hovertext", "hovertemplate", "name", "ticktext", "legendgroup"}
"""Fields whose text Plotly draws."""


def drawn_texts(part: Any, field: str = "") -> Iterator[str]:
    """All text that Plotly would look for markup in."""
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
    """The Python package checks names and values; its own colours do not come in."""
    assert len(go.Figure(figure).data) == len(figure["data"])


@pytest.mark.parametrize("figure", EVERY)
def test_a_figure_is_plain_json(figure: Figure) -> None:
    """No infinity and no NaN either, which no browser reads."""
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure


@pytest.mark.parametrize("figure", EVERY)
def test_names_of_users_are_neither_markup_nor_templates(figure: Figure) -> None:
    """The only element is the line break that we put between lines."""
    for words in drawn_texts(figure):
        assert "<" not in words.replace("<br>", "").replace("<extra></extra>", "")
        assert "%{x}" not in words.replace("%{x:", "").replace("<br>%{x}<extra>", "")


@pytest.mark.parametrize("figure", EVERY)
def test_a_figure_has_words(figure: Figure) -> None:
    """For those who do not see it; and a table, unless it is empty."""
    assert description(figure).endswith((".", ")"))
    columns, rows, _ = table(figure)
    assert all(len(row) == len(columns) for row in rows)
    assert bool(rows) is bool(figure["data"])
    assert len(rows) <= MOST_ROWS


@pytest.mark.parametrize("figure", EVERY)
def test_nothing_of_a_figure_needs_webgl(figure: Figure) -> None:
    """Such traces build functions from text, which the page's policy forbids."""
    assert {trace["type"] for trace in figure["data"]} <= {"scatter", "bar", "heatmap"}


@pytest.mark.parametrize("figure", EVERY)
def test_no_figure_offers_to_be_uploaded(figure: Figure) -> None:
    """The script's own button would send it to its maker."""
    assert "sendChartToCloud" in figure["layout"]["modebar"]["remove"]
    assert CONFIG["showSendToCloud"] is False


def test_a_theme_is_seen_in_the_ground() -> None:
    """The same figure twice."""
    for theme, found in DRAWN.items():
        assert {figure["layout"]["paper_bgcolor"] for figure in found.values()} == {
            THEME_COLORS[theme].ground
        }


def test_the_samples_are_unkind() -> None:
    """Otherwise the tests above prove nothing."""
    found = [words for figure in DRAWN["light"].values() for words in drawn_texts(figure)]
    assert sum(text(NASTY) in words for words in found) > 20


def test_numbers_have_six_digits_and_what_is_none_has_a_name() -> None:
    """Missing, infinite and not a number differ."""
    given = [0.12345678, 1e-9, 12345678.0, None, float("nan"), float("inf"), float("-inf")]
    words = ["0.123457", "1e-09", "1.23457e+07", "missing", "not a number", "infinite", "minus infinite"]
    assert [number(value) for value in given] == words


@pytest.mark.parametrize(("seconds", "name"), [(60, "s"), (1000, "min"), (50_000, "h"), (1e6, "d")])
def test_time_has_a_sub_epoch_that_suits_it(seconds: float, name: str) -> None:
    """Nobody reads 50,000 seconds."""
    assert duration(seconds).name == name


def test_a_long_table_says_what_was_cut() -> None:
    """Instead of filling a page."""
    assert cut([(i,) for i in range(MOST_ROWS)], ("n",)).note == ""
    found = cut([(i,) for i in range(5000)], ("n",))
    assert (len(found.rows), found.note) == (100, "the first 100 of 5,000 rows")
