"""Tables keep the meaning of cells for row functions and predictions."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data.tables.locators import known_columns
from cerebro.data.tables.whole_tables import (
    column_names,
    parquet_column_names,
    read_columns,
    write_columns,
)
from cerebro.errors import VolumeError
from tests.data.rows import parse_table


def test_numbers_with_leading_zeros_stay_text() -> None:
    """``0001`` names an object; as the number 1 it would name another one."""
    table = parse_table(b"id,image,label\n0001,0007,3\n0002,0008,4\n", "train.csv")
    assert table.to_pylist() == [
        {"id": "0001", "image": "0007", "label": 3},
        {"id": "0002", "image": "0008", "label": 4},
    ]


def test_plain_numbers_are_numbers() -> None:
    """Whole ids, labels and measures keep their types; an empty cell is null."""
    table = parse_table(b"id,label,weight\n1,3,0.5\n2,,1.5\n", "train.csv")
    assert table.to_pylist() == [
        {"id": 1, "label": 3, "weight": 0.5},
        {"id": 2, "label": None, "weight": 1.5},
    ]


def test_decimal_and_date_ids_become_text() -> None:
    """A date or 1.50 as id keeps its notation."""
    assert parse_table(b"id\n1.50\n2.5\n", "train.csv").to_pylist() == [{"id": "1.50"}, {"id": "2.5"}]


def test_columns_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Predictions return plain values."""
    write_columns(tmp_path / "p.arrow", {"id": ["a", "b"], "digit": [1, 2]})
    assert read_columns(tmp_path / "p.arrow") == {"id": ["a", "b"], "digit": [1, 2]}


def test_a_deleted_folder_is_not_recreated(tmp_path: Path) -> None:
    """A revoked prediction may finish after its experiment was deleted, or after the volume was unmounted."""
    with pytest.raises(VolumeError, match="one"):
        write_columns(tmp_path / "one" / "p.arrow", {"id": ["a"]})
    assert list(tmp_path.iterdir()) == []


NAMES = st.lists(
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(names=NAMES, has_mark=st.booleans(), data=st.data())
def test_columns_are_read_from_the_first_bytes(names: list[str], has_mark: bool, data: st.DataObject) -> None:
    """Incomplete text gives no columns; complete headers equal a full read for any quoting."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, ["1"] * len(names)])
    content = text.getvalue().encode("utf-8-sig" if has_mark else "utf-8")
    head = content[: data.draw(st.integers(content.index(b"\n") + 1, len(content)))]
    assert list(column_names("t.csv", head) or ()) == parse_table(content, "t.csv").column_names
    assert column_names("t.csv", content[: content.index(b"\n")]) is None


def test_columns_of_parquet_are_read_from_the_last_bytes(tmp_path: Path) -> None:
    """Only if the file is really Parquet."""
    pq.write_table(pa.table({"id": [1], "image": ["a"]}), tmp_path / "t.parquet")
    with (tmp_path / "t.parquet").open("rb") as file:
        assert parquet_column_names(file) == ("id", "image")
    (tmp_path / "other.parquet").write_text("id\n1\n")
    with (tmp_path / "other.parquet").open("rb") as file:
        assert parquet_column_names(file) is None
    assert known_columns(f"file://{tmp_path}/t.parquet") == ("id", "image")
    assert known_columns(str(tmp_path / "other.parquet")) is None
    assert known_columns(str(tmp_path / "absent.csv")) is None
