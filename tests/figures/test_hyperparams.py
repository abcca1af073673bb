"""The choice of an axis for a hyperparameter."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from cerebro.figures.hyperparams import scale, varying
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
    """Logarithmic for positive numbers with large ratios; categories for words and for numbers absent in a model."""
    assert scale("x", values).kind == kind


def test_values_are_compared_and_not_their_texts() -> None:
    """Seeds with equal first six digits differ; 1 and "1" differ, 1 and 1.0 do not; very large numbers work."""
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


def test_category_labels_are_distinct() -> None:
    """Ambiguous ones are written as JSON: text in quotes, numbers in full."""
    values: list[JsonValue] = [True, "true", 1.0, "1", 1, 1e9 + 1, 1e9 + 2, None, "(absent)", "x"]
    found = scale("x", values)
    assert set(found.categories) == {
        "true", '"true"', "1.0", '"1"', "1000000001.0", "1000000002.0", "(absent)", '"(absent)"', "x",
    }  # fmt: skip
    assert found.position(1) == found.position(1.0) == found.categories.index("1.0")
    assert [found.categories[found.position(value)] for value in ("1", True)] == ['"1"', "true"]
