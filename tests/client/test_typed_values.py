"""Hyperparameters typed as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from cerebro.commands.values import text_of, value_of, values_of
from cerebro.state.models.configs import is_same

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_the_text_of_a_value_is_read_as_the_same_value(value: JsonValue) -> None:
    """Types survive: 1, 1.0, true and the text "1" are four values. The text is one line, as in a form field."""
    text = text_of(value)
    assert is_same({"x": value_of(text)}, {"x": value})
    assert text.isprintable()


@given(st.text())
def test_every_text_is_a_value(text: str) -> None:
    """Text that is not JSON is taken literally."""
    value_of(text)
    value_of("[" * 5_000 + text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("true", True),
        ("[32, 64]", [32, 64]),
        ("adam", "adam"),
        ('"1"', "1"),
        (".5", ".5"),
        ("", ""),
    ],
)
def test_values_are_json_or_text(text: str, value: object) -> None:
    assert value_of(text) == value
    assert values_of([f"x={text}"]) == {"x": value}
