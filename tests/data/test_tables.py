"""Tables as users write them: what a cell says is what the row function and the predictions see."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.data.tables import parse_table, read_columns, write_columns


def test_numbers_with_leading_zeros_stay_text() -> None:
    """``0001`` names an object; read as the number 1 it would name another one."""
    table = parse_table(b"id,image,label\n0001,0007,3\n0002,0008,4\n", "train.csv")
    assert table.to_pylist() == [
        {"id": "0001", "image": "0007", "label": 3},
        {"id": "0002", "image": "0008", "label": 4},
    ]


def test_plain_numbers_are_numbers() -> None:
    """Whole ids, labels and measures keep their types; an empty cell is no value."""
    table = parse_table(b"id,label,weight\n1,3,0.50\n2,,1.5\n", "train.csv")
    assert table.to_pylist() == [
        {"id": 1, "label": 3, "weight": 0.5},
        {"id": 2, "label": None, "weight": 1.5},
    ]


def test_ids_that_are_neither_whole_nor_text_are_text() -> None:
    """A date or 1.50 as id comes back as it was written."""
    assert parse_table(b"id\n1.50\n2.5\n", "train.csv").to_pylist() == [{"id": "1.50"}, {"id": "2.5"}]


def test_columns_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Predictions are read as plain values."""
    write_columns(tmp_path / "p.arrow", {"id": ["a", "b"], "digit": [1, 2]})
    assert read_columns(tmp_path / "p.arrow") == {"id": ["a", "b"], "digit": [1, 2]}


def test_a_folder_that_was_deleted_is_not_brought_back(tmp_path: Path) -> None:
    """A prediction that was taken back may still be at its end when its experiment is gone."""
    with pytest.raises(FileNotFoundError, match="one"):
        write_columns(tmp_path / "one" / "p.arrow", {"id": ["a"]})
    assert list(tmp_path.iterdir()) == []
