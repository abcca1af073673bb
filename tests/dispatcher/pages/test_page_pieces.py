"""Helpers of pages: addresses, queries, comparisons, number formats and figure files."""

from __future__ import annotations

import gzip
from importlib.metadata import version

import pytest
from flask import render_template_string

from cerebro.figures.palette import STYLES, colour
from dispatcher.models.query import ModelQuery
from dispatcher.pages import formats
from dispatcher.pages.queries import query_of
from dispatcher.pages.statics import palette
from tests.dispatcher.fakes import Bench


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


# --- addresses -----------------------------------------------------------------------------------


def test_outdated_query_fields_are_ignored() -> None:
    """Unknown fields are ignored and invalid values fall back to their default."""
    query = query_of(
        ModelQuery, {"sort": "-best", "page": "many", "size": "100000", "tab": "7"}, filter="x = 1"
    )
    assert query == ModelQuery(sort="-best", filter="x = 1")


# --- comparison ----------------------------------------------------------------------------------


# --- how values are written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.123456789, "number", "0.123457"),
        (1234567, "count", "1,234,567"),
        (0.5, "share", "50.0 %"),
        (75.0, "duration", "1 min 15 s"),
        (0.42, "duration", "0.4 s"),
        (0.0, "time", "1970-01-01T00:00:00Z"),
        (None, "number", "\N{EN DASH}"),
        ("NaN", "number", "NaN"),
        (True, "number", "true"),
        ("adam", "text", "adam"),
    ],
)
def test_cells_are_formatted_by_the_kind_of_their_column(value: object, kind: str, text: str) -> None:
    """By the kind of the column; a non-number is shown unchanged."""
    assert formats.cell(value, kind) == text


# --- files for figures ---------------------------------------------------------------------------


def test_script_for_figures_comes_from_the_installed_package(bench: Bench) -> None:
    """Compressed and cacheable for ever under a versioned address; also for browsers without compression."""
    client = bench.signed_in().client
    with bench.app.test_request_context("/"):
        address = render_template_string("{{ asset('plotly.js') }}")
    assert address.endswith(f"?v={version('plotly')}")
    where = {"base_url": "http://127.0.0.1:7080"}
    packed = client.get(address, headers={"Accept-Encoding": "gzip"}, **where)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Cache-Control"] == "private, max-age=31536000, immutable"
    assert packed.mimetype == "text/javascript"
    plain = client.get(address, headers={"Accept-Encoding": "identity"}, **where)
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 3
    assert b"plotly.js v" in plain.data[:200]


def test_palette_has_a_class_for_each_colour_of_both_themes() -> None:
    """A model's class follows its index; the classes repeat after the last."""
    sheet = palette()
    light, _, dark = sheet.partition("@media (prefers-color-scheme:dark)")
    for index in range(STYLES):
        assert f".line-{index}{{stroke:{colour(index, 'light')}}}" in light
        assert f".line-{index}{{stroke:{colour(index, 'dark')}}}" in dark
    dots = (
        Bench()
        .app.jinja_env.from_string(
            '{% import "pages/macros.html" as ui %}{{ ui.dot(1) }}{{ ui.dot(looks + 1) }}'
        )
        .render(looks=STYLES)
    )
    assert dots.count('class="dot line-1"') == 2
