"""Which axis a hyper-parameter gets."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from cerebro.figures.hyperparams import scale, varying, word
from tests.figures.samples import row


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.001, 0.01, 0.1], "log"),
        ([1e-4, 1e-1], "log"),
        ([16, 32, 64, 128, 256], "log"),
        ([0.003, 0.01], "linear"),
        ([0.0, 0.25, 0.5], "linear"),
        ([1, 50, 100], "linear"),
        ([-1.0, 100.0], "linear"),
        (["relu", "gelu"], "category"),
        ([True, False], "category"),
        ([1, None], "category"),
        ([1, "1"], "category"),
        ([1, 10**400], "category"),
        ([float("inf"), 1.0], "category"),
        ([0.0008, 0.003, 0.05, 0.09], "log"),
    ],
)
def test_the_axis_suits_the_values(values: list[JsonValue], kind: str) -> None:
    """Logarithmic if positive numbers go by factors; words, and numbers that some models lack, are categories."""
    assert scale("x", values).kind == kind


def test_categories_are_in_order() -> None:
    """Numbers by size, words by alphabet, absence last."""
    found = scale("x", [None, "b", 10, 9, "a", [1, 2], True])
    assert found.categories == ("9", "10", "[1, 2]", "a", "b", "true", "(absent)")


def test_what_is_the_same_for_all_does_not_vary() -> None:
    """A hyper-parameter that only some models have does."""
    rows = [
        row(0, 1.0, {"a": 1, "b": [1], "c": 1}),
        row(1, 1.0, {"a": 1, "b": [2], "c": 1, "d": 1}),
    ]
    assert varying(rows) == ("b", "d")


def test_values_are_compared_and_not_their_words() -> None:
    """Six digits are the same of both seeds; 1 and "1" differ, 1 and 1.0 do not; no number is too large."""
    rows = [
        row(
            0,
            1.0,
            {"seed": 1_000_001.0, "kind": 1, "same": 1, "list": [1, {"a": 1, "b": 2}], "huge": 10**400},
        ),
        row(
            1, 1.0, {"seed": 1_000_002.0, "kind": "1", "same": 1.0, "list": [1, {"b": 2, "a": 1}], "huge": 1}
        ),
    ]
    assert varying(rows) == ("seed", "kind", "huge")


def test_no_two_categories_read_alike() -> None:
    """What would is written as JSON: text in quotes, numbers in full."""
    values: list[JsonValue] = [True, "true", 1.0, "1", 1, 1e9 + 1, 1e9 + 2, None, "(absent)", "x"]
    found = scale("x", values)
    assert set(found.categories) == {
        "true", '"true"', "1.0", '"1"', "1000000001.0", "1000000002.0", "(absent)", '"(absent)"', "x",
    }  # fmt: skip
    assert found.position(1) == found.position(1.0) == found.categories.index("1.0")
    assert [found.categories[found.position(value)] for value in ("1", True)] == ['"1"', "true"]


def test_values_are_words_of_six_digits() -> None:
    """Enough to tell them apart, not more."""
    values: list[JsonValue] = [0.123456789, 1e-5, True, None, "x", {"a": 1}]
    assert [word(value) for value in values] == [
        "0.123457", "1e-05", "true", "(absent)", "x", '{"a": 1}',
    ]  # fmt: skip
