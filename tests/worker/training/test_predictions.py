"""Predictions become a table with one entry per row, or an error with the expected format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro import Ragged
from cerebro.data.tables.whole_tables import read_columns
from cerebro.errors import SpecError
from cerebro.worker.training.predictions import write_predictions

_ROWS = Ragged.of([torch.arange(2), torch.arange(0), torch.arange(1)])
_LISTS = [[0, 1], [], [0]]


def _written(tmp_path: Path, returned: Any, rows: int = 3) -> dict[str, list[Any]]:
    path = tmp_path / "predictions.arrow"
    write_predictions(path, list(range(rows)), returned)
    found = read_columns(path)
    assert found.pop("id") == list(range(rows))
    return found


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (_ROWS, {"prediction": _LISTS}),
        (["a", "a b", ""], {"prediction": ["a", "a b", ""]}),
        ([[1, 2], [], [3]], {"prediction": [[1, 2], [], [3]]}),
        ([["a"], [], ["b", "c"]], {"prediction": [["a"], [], ["b", "c"]]}),
        (np.array(["a", "bc", ""]), {"prediction": ["a", "bc", ""]}),
        ([torch.zeros(2), torch.zeros(1)], {"prediction": [0.0, 0.0, 0.0]}),  # one per batch
        (torch.ones(3, dtype=torch.bfloat16), {"prediction": [1.0, 1.0, 1.0]}),
        ({"words": list(_ROWS), "p": torch.ones(3)}, {"words": _LISTS, "p": [1.0, 1.0, 1.0]}),
        ({"words": _ROWS, "text": ["a", None, "c"]}, {"words": _LISTS, "text": ["a", None, "c"]}),
        ({"a": {"b": [1, 2, 3]}, "c": _ROWS}, {"a.b": [1, 2, 3], "c": _LISTS}),
        (
            Ragged.of([np.ones((1, 2, 1)), np.ones((0, 2, 1)), np.ones((0, 2, 1))]),
            {"prediction": [[[[1], [1]]], [], []]},
        ),
        (
            Ragged.of([np.ones((1, 0)), np.ones((0, 0)), np.ones((2, 0))]),
            {"prediction": [[[]], [], [[], []]]},
        ),
        (
            Ragged.of([np.array([True]), np.zeros(0, bool), np.zeros(0, bool)]),
            {"prediction": [[True], [], []]},
        ),
    ],
)
def test_predictions_of_all_rows_are_written_together(
    tmp_path: Path, returned: Any, expected: dict[str, list[Any]]
) -> None:
    """Covers arrays of different lengths, texts, and several columns of equal or different kinds."""
    assert _written(tmp_path, returned) == expected


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([_ROWS[:2], _ROWS[2:]], {"prediction": _LISTS}),
        ([list(_ROWS[:2]), list(_ROWS[2:])], {"prediction": _LISTS}),
        ([["a", "b"], ["c"]], {"prediction": ["a", "b", "c"]}),
        ([[[1, 2], []], [[3]]], {"prediction": [[1, 2], [], [3]]}),
        ([{"n": [1, None]}, {"n": [2]}], {"n": [1, None, 2]}),
        (
            [{"words": _ROWS[:2], "text": ["a", "b"]}, {"text": ["c"], "words": list(_ROWS[2:])}],
            {"words": _LISTS, "text": ["a", "b", "c"]},
        ),
        ([_ROWS[:0], _ROWS, []], {"prediction": _LISTS}),
    ],
)
def test_predictions_are_written_batch_by_batch(
    tmp_path: Path, batches: list[Any], expected: dict[str, list[Any]]
) -> None:
    """Covers the same values from a generator."""
    assert _written(tmp_path, iter(batches)) == expected


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (_ROWS[:2], "2 values of 'prediction' for 3 rows"),
        (list(_ROWS[[0, 0, 2]]), r"5 values .* for 3 rows.*one for each batch.*Ragged\.of\(list\)"),
        ({"x": [np.zeros(2), np.zeros((2, 2)), np.zeros(1)]}, "column 'x' that cannot be stored: entry 1"),
        ({"x": [1, 2, 3], "y": ["a", 1, {}]}, "column 'y'"),
        (iter([np.zeros((2, 4)), np.zeros((1, 5))]), r"shapes \(4,\) and \(5,\).*Ragged.*pad"),
        (iter([_ROWS[:2], ["a"]]), "different lengths in one batch and something else in another"),
        (iter([_ROWS[:2], Ragged.of([np.zeros(1)])]), "'prediction' that differ.*float64"),
        (iter([{"x": [1], "y": [1]}, {"x": [1]}]), r"\['x'\] for batch 1 and \['x', 'y'\].*'y' is in one"),
        (iter([]), "yielded nothing"),
        (iter([object()]), "no array, tensor"),
        (3, "returned a int"),
        ({"x": torch.zeros(3).to_sparse()}, "column 'x' that cannot be stored"),
        (
            {"x": np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])},
            "column 'x' that cannot be stored: it has masked",
        ),
    ],
)
def test_invalid_predictions_are_named(tmp_path: Path, returned: Any, expected: str) -> None:
    """The error has the column and the expected format, and no file is written."""
    with pytest.raises(SpecError, match=expected):
        _written(tmp_path, returned)
    assert list(tmp_path.iterdir()) == []
