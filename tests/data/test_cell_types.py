"""Column types of text files keep every cell's meaning, over all files and splits."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.base import Split
from cerebro.contract.records import Locators
from cerebro.data.tables.locators import open_metadata, preview_metadata
from cerebro.data.tables.splits import SplitTypesError, open_splits
from cerebro.data.tables.table_files import table_files
from cerebro.errors import MetadataError
from tests.data.rows import parse_table

WRITTEN_SO: Mapping[str, Sequence[Any]] = {
    "0 1 -7 9223372036854775807 -9223372036854775808": [0, 1, -7, 2**63 - 1, -(2**63)],
    "0 1.5 -0.25 3.0 1e+16 1e-05 1.0E10 1.5E-5 9007199254740992": [
        0,
        1.5,
        -0.25,
        3,
        1e16,
        1e-5,
        1e10,
        1.5e-5,
        2**53,
    ],
    "100000.0 0.30000000000000004 5e-324 -0.0 -0": [1e5, 0.1 + 0.2, 5e-324, -0.0, -0.0],
    "0.50 1.10 -2.25 10.00 -0.00": [0.5, 1.1, -2.25, 10.0, -0.0],
    "0.100000000000000005551115 12.500000000000000000000000": [0.1, 12.5],
    "1.500000000000000000e+00 -1.000000000000000056e-01": [1.5, -0.1],
    ".5 -.25 5. -7. 1.5": [0.5, -0.25, 5.0, -7.0, 1.5],
    "0.10000000000000001 -1.1000000000000001e-07 3 0.30000000000000004441": [0.1, -1.1e-7, 3.0, 0.1 + 0.2],
    "1.5e-07 2.25E-08 1e-300 -3.5e+22": [1.5e-7, 2.25e-8, 1e-300, -3.5e22],
    "true false True FALSE": [True, False, True, False],
    "2024-02-29 1999-12-31": [date(2024, 2, 29), date(1999, 12, 31)],
    "2024-02-29T12:00:00": [datetime(2024, 2, 29, 12)],
    "2024-02-29T12:00:00.250": [datetime(2024, 2, 29, 12, 0, 0, 250_000)],
    "2024-02-29T12:00:00+00:00 2024-02-29T12:00:01Z": [
        datetime(2024, 2, 29, 12, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 0, 1, tzinfo=UTC),
    ],
    "2024-02-29T12:00:00.000250+00:00": [datetime(2024, 2, 29, 12, 0, 0, 250, UTC)],
}
"""Cells of a column -> their values."""
TEXT = (
    "12345678901234567890", "9223372036854775808", "18446744073709551615", "1" + "0" * 22, "9007199254740993 0.5",
    "1.10 1.9", "1.0 2.50", "0.50 1", "00.50 1.25",
    "0.50 1e5", "-.50 0.25", "1.10 1.1", "0.1234567890123456789", "1e5 2e7", "12E3", "0001", "00.5", "+1",
    "+1.5", "-007", "1e5 .5", "05.", ".", "1_000", "1,5", "0x1F", "NA 1", "NaN 1.5", "nan", "inf", "-inf", "Infinity",
    "1e999",    "1e-999", "null 1", "None", "N/A", "#N/A", "NULL", "1 true", "0 false", "yes", "2024-2-9", "2024-02-30",
    "2024-02-29 1", "0000-01-01", "2024-02-29 0000-01-01", "0000-01-01T12:00:00", "12:00", "12:00:00",
    "2024-02-29T12:00:00+02:00", "1e", "--1", "1.5.2", "\u0661", "1\u00a0000",
)  # fmt: skip
"""Cells of text columns: another type would change the value or its notation."""


def write(path: Path, columns: Mapping[str, Sequence[str]]) -> str:
    """Write a CSV file with an id column; return its address."""
    rows = list(zip(*columns.values(), strict=True))
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["id", *columns])
        out.writerows([f"r{number}", *row] for number, row in enumerate(rows))
    return str(path)


def read(
    addresses: Mapping[Split, str], types: Mapping[Split, dict[str, str]] | None = None
) -> dict[str, pa.Table]:
    """Read all rows of the splits."""
    given = types or {}
    streams = open_splits(
        {split: (table_files(uri), given.get(split, {})) for split, uri in addresses.items()}
    )
    return {
        split: pa.Table.from_batches([rows.batch for rows in stream.rows()], stream.schema)
        for split, stream in streams.items()
    }


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("cells", "values"), WRITTEN_SO.items())
def test_values_in_the_usual_notation_get_their_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: str, values: Sequence[Any], is_streamed: bool
) -> None:
    """Numbers, booleans and dates in the usual notation; an empty cell is null."""
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 60)
    each = [*cells.split(" "), ""]
    found = read({"train": write(tmp_path / "t.csv", {"c": each * 20})})["train"]["c"].to_pylist()
    assert list(map(repr, map(_in_utc, found[: len(each)]))) == list(map(repr, [*_like(values), None]))
    assert found == found[: len(each)] * 20


def _like(values: Sequence[Any]) -> Sequence[Any]:
    """Integers in a column of floats become floats."""
    return [float(each) for each in values] if any(type(each) is float for each in values) else values


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("cells", TEXT)
def test_cells_that_a_number_would_change_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: str, is_streamed: bool
) -> None:
    """Twenty digits, 1.10, 1e5, leading zeros, signs and words for null keep their text."""
    each = [*cells.split(" "), ""]
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 60 + len(cells))
    uri = write(tmp_path / "t.csv", {"c": each * 20})
    assert read({"train": uri})["train"]["c"].to_pylist() == each * 20


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        ([" 5.5", "5.25 ", "-1.0"], [5.5, 5.25, -1.0]),
        ([" 0.50", "10.25"], [0.5, 10.25]),
        (["  1", " 10", "100", ""], [1, 10, 100, None]),
        ([" true", "false "], [True, False]),
        (["2024-02-29 12:00:00+00:00"], [datetime(2024, 2, 29, 12, tzinfo=UTC)]),
        (["  ", "5.5"], ["  ", "5.5"]),
        (["  ", ""], ["  ", ""]),
        ([" x", "5"], [" x", "5"]),
        (["1 000", "5"], ["1 000", "5"]),
        ([" 007", "5"], [" 007", "5"]),
        (["2024-02-29 12:00:00+02:00"], ["2024-02-29 12:00:00+02:00"]),
    ],
)
def test_spaces_around_numbers(tmp_path: Path, cells: list[str], values: Sequence[Any]) -> None:
    """Ignored around numbers. A cell of only spaces is text, and text keeps its spaces."""
    found = read({"train": write(tmp_path / "t.csv", {"c": cells})})["train"]["c"].to_pylist()
    assert list(map(repr, map(_in_utc, found))) == list(map(repr, values))


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


PLAIN = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats().map(repr),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.sampled_from([*TEXT, *(cell for cells in WRITTEN_SO for cell in cells.split(" ")), ""]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=4),
)


@given(column=st.lists(PLAIN, min_size=1, max_size=6))
def test_a_cell_keeps_its_value_when_read(column: list[str]) -> None:
    """Numbers keep their decimal value, all other cells their text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["id", "c"], *(["r", cell] for cell in column)])
    found = parse_table(text.getvalue().encode(), "t.csv")["c"]
    for cell, value in zip(column, found.to_pylist(), strict=True):
        if value is None:
            assert cell == ""
        elif type(value) is float:
            number = cell.strip(" ")
            mantissa = number.partition("e")[0]
            decimals, digits = len(mantissa.partition(".")[2]), len(re.sub(r"^[-0.]*|\.", "", mantissa))
            assert Decimal(repr(value)) == Decimal(number) or number in (
                f"{value:.{decimals}f}",
                f"{value:.{decimals}e}",
                f"{value:.{max(17, digits)}g}",
            )
        elif pa.types.is_temporal(found.type):
            time = re.sub(r"Z|\+00:00", "", cell.strip(" ").replace("T", " "))
            assert str(value).removesuffix("+00:00") in (time, f"{time}000")
        elif type(value) is str:
            assert value == cell
        else:
            assert str(value) == (cell.capitalize() if type(value) is bool else cell).strip(" ")


@pytest.mark.parametrize(
    ("train", "valid", "kind"),
    [
        ("1 2", "3 x", pa.string()),
        ("1 2", "NA", pa.string()),
        ("1 2", "007", pa.string()),
        ("1 2", "1.5", pa.float64()),
        ("9007199254740993", "1.5", pa.string()),
        ("1", "12345678901234567890", pa.string()),
        ("1", "", pa.int64()),
        ("x", "", pa.string()),
        ("true", "1", pa.string()),
        ("2024-02-29", "unknown", pa.string()),
        ("2024-02-29", "2024-02-29T12:00:00", pa.string()),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_column_has_one_type_in_all_splits(
    tmp_path: Path, train: str, valid: str, kind: pa.DataType, is_turned: bool
) -> None:
    """Any split can make a column text; previews and runs agree."""
    cells = (valid, train) if is_turned else (train, valid)
    addresses: dict[Split, str] = {
        "train": write(tmp_path / "a.csv", {"c": cells[0].split(" ")}),
        "valid": write(tmp_path / "b.csv", {"c": cells[1].split(" "), "other": cells[1].split(" ")}),
    }
    found = read(addresses)
    assert [table["c"].type for table in found.values()] == [kind, kind]
    locators = Locators.model_validate({split: {"metadata": uri} for split, uri in addresses.items()})
    for split, stream in open_metadata(locators).items():
        shown = preview_metadata(split, locators.splits()[split], 9, stream=stream).table
        assert shown.to_pylist() == found[split].to_pylist()


def test_a_configured_type_applies_to_all_splits(tmp_path: Path) -> None:
    """For text files; contradicting types are refused with both splits."""
    addresses: dict[Split, str] = {
        "train": write(tmp_path / "a.csv", {"zip": ["0123"], "share": ["1.10"]}),
        "valid": write(tmp_path / "b.csv", {"zip": ["99"], "share": ["NA"]}),
    }
    found = read(addresses, {"train": {"zip": "string", "share": "float64"}})
    assert [table["zip"].to_pylist() for table in found.values()] == [["0123"], ["99"]]
    assert [table["share"].to_pylist() for table in found.values()] == [[1.1], [None]]
    with pytest.raises(
        SplitTypesError, match=r"'zip' is string in 'train' and int64 in 'valid': a column needs one"
    ):
        read(addresses, {"train": {"zip": "string"}, "valid": {"zip": "int64"}})


def test_text_and_parquet_have_one_type(tmp_path: Path) -> None:
    """CSV cells take the type of the Parquet column if they fit; an error names both splits."""

    def pair(values: pa.Array, cells: list[str]) -> list[pa.Table]:
        pq.write_table(pa.table({"id": ["r"] * len(values), "c": values}), tmp_path / "p.parquet")
        csv_file = write(tmp_path / "t.csv", {"c": cells})
        return [
            each["c"] for each in read({"train": str(tmp_path / "p.parquet"), "valid": csv_file}).values()
        ]

    for values, cells in (
        (pa.array(["a"]), ["1"]),
        (pa.array([1.5]), ["1"]),
        (pa.array([3], pa.int32()), ["4"]),
    ):
        first, second = pair(values, cells)
        assert first.type == second.type
        assert (first.to_pylist(), second.cast(pa.string()).to_pylist()) == (values.to_pylist(), cells)
    with pytest.raises(
        SplitTypesError, match=r"'c' is int64 in 'train', but has '007' in 'valid'.*'c': 'int64'}"
    ):
        pair(pa.array([7]), ["1", "007"])
    addresses: dict[Split, str] = {"train": f"{tmp_path}/p.parquet", "valid": f"{tmp_path}/t.csv"}
    assert read(addresses, {"valid": {"c": "int64"}})["valid"]["c"].to_pylist() == [1, 7]
    pq.write_table(pa.table({"id": ["r"], "c": ["x"]}), tmp_path / "q.parquet")
    with pytest.raises(SplitTypesError, match=r"'c' is int64 in 'train' and string in 'valid'"):
        read({"train": str(tmp_path / "p.parquet"), "valid": str(tmp_path / "q.parquet")})
    with pytest.raises(SplitTypesError, match=r"has '1' in 'valid'.* Write the tables with one type"):
        pair(pa.array([date(2024, 2, 29)]), ["1", "007"])


@pytest.mark.parametrize(
    "values",
    [pa.array([7], pa.int32()), pa.array(["x"]), pa.array([True]), pa.array([date(2024, 2, 29)]), None],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_parquet_column_of_nulls_gets_the_type_of_other_splits(
    tmp_path: Path, values: pa.Array | None, is_turned: bool
) -> None:
    """pandas writes a column without labels as float64; a CSV or Parquet split with labels decides the type."""
    dummy = pa.table({"id": ["p", "q"], "c": pa.array([None, None], pa.float64())})
    pq.write_table(dummy, tmp_path / "p.parquet", row_group_size=1)
    if values is None:
        train, kind = write(tmp_path / "t.csv", {"c": ["cat", "dog"]}), pa.string()
    else:
        train, kind = str(tmp_path / "t.parquet"), values.type
        pq.write_table(pa.table({"id": ["r"], "c": values}), train)
    addresses: list[tuple[Split, str]] = [("train", train), ("predict", f"{tmp_path}/p.parquet")]
    found = read(dict(reversed(addresses) if is_turned else addresses))
    assert [table["c"].type for table in found.values()] == [kind, kind]
    assert found["predict"]["c"].to_pylist() == [None, None]
    assert None not in found["train"]["c"].to_pylist()
    alone = read({"predict": f"{tmp_path}/p.parquet"})["predict"]
    assert alone["c"].type == pa.float64()


def test_a_parquet_column_without_statistics_keeps_its_type(tmp_path: Path) -> None:
    """Its cells are unknown when the types are decided. An empty list is a value."""
    dummy = pa.table({"id": ["p"], "c": pa.array([None], pa.float64())})
    pq.write_table(dummy, tmp_path / "p.parquet", write_statistics=False)
    csv_file = write(tmp_path / "t.csv", {"c": ["cat"]})
    with pytest.raises(SplitTypesError, match="'c' is double in 'predict', but has 'cat' in 'train'"):
        read({"train": csv_file, "predict": f"{tmp_path}/p.parquet"})
    lists = pa.table({"id": ["p"], "c": pa.array([[]], pa.list_(pa.int32()))})
    pq.write_table(lists, tmp_path / "p.parquet")
    with pytest.raises(SplitTypesError, match="'c' is list"):
        read({"train": csv_file, "predict": f"{tmp_path}/p.parquet"})


@pytest.mark.parametrize("is_one_split", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_decimals_are_never_rounded_to_floats(tmp_path: Path, is_one_split: bool, is_nested: bool) -> None:
    """Decimals and floats in one column are refused, in one split or two, also in lists."""
    for name, value in (("a", Decimal("12345678901234567.89")), ("b", 1.5)):
        cells = [[value]] if is_nested else [value]
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": ["r"], "c": cells}), tmp_path / name / f"{name}.parquet")
    addresses: dict[Split, str] = {"train": f"{tmp_path}/a", "valid": f"{tmp_path}/b"}
    if is_one_split:
        (tmp_path / "b/b.parquet").rename(tmp_path / "a/b.parquet")
        addresses = {"train": f"{tmp_path}/a"}
    with pytest.raises(MetadataError, match="decimal128"):
        read(addresses)


def test_later_floats_may_have_any_notation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows decide that a column has floats; afterwards only words contradict."""
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 20)
    cells = ["0.5", "1.9", "1.5", "1.50", "3", "+2.5", "1e5", "", " 4.25"]
    values = [0.5, 1.9, 1.5, 1.5, 3.0, 2.5, 1e5, None, 4.25]
    assert read({"train": write(tmp_path / "t.csv", {"c": cells})})["train"]["c"].to_pylist() == values
    for word in ("nan", "inf", "1e999", "NA", "x", "0x1F", "1,5", "9007199254740993"):
        uri = write(tmp_path / "t.csv", {"c": [*cells, word]})
        with pytest.raises(MetadataError, match=f"row 10, column 'c', has '{word}'"):
            read({"train": uri})


@pytest.mark.parametrize(
    ("cells", "later", "alias"),
    [
        ("1 2", "007", "int64"),
        ("1 2", "NA", "int64"),
        ("1 2", "1.5", "float64"),
        ("1 2", "x", "string"),
        ("1 2", "9223372036854775809", "string"),
        ("0.5 1.5", "NaN", "float64"),
        ("0.5 1.5", "x", "string"),
        ("true false", "NA", "bool"),
        ("true false", "yes", "string"),
        ("2024-02-29 2024-03-01", "NA", "string"),
    ],
)
def test_the_type_that_an_error_names_reads_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: str, later: str, alias: str
) -> None:
    """The column keeps its type if Arrow can read the cell that way."""
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 20)
    uri = write(tmp_path / "t.csv", {"c": [*(cells.split(" ") * 5), later]})
    with pytest.raises(MetadataError, match=rf"row 11, column 'c', has '{later}'.*{{'c': '{alias}'}}"):
        read({"train": uri})
    assert read({"train": uri}, {"train": {"c": alias}})["train"].num_rows == 11


def test_ids_have_one_type_in_all_splits(tmp_path: Path) -> None:
    """Whole numbers in each split, or text in each split."""
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    (tmp_path / "b.csv").write_text("id\n3\n04\n")
    found = read({"train": f"{tmp_path}/a.csv", "predict": f"{tmp_path}/b.csv"})
    assert [table["id"].to_pylist() for table in found.values()] == [["1", "2"], ["3", "04"]]
    (tmp_path / "b.csv").write_text("id\n3\n 4\n")
    found = read({"train": f"{tmp_path}/a.csv", "predict": f"{tmp_path}/b.csv"})
    assert [table["id"].to_pylist() for table in found.values()] == [["1", "2"], ["3", " 4"]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('1,"x\n2,y\n3,z\n', "line 3 and is never closed"),
        ('1,"x\n2,y\n3,"z"\n', "line 3 and closes in line 5 in the middle of a value"),
        ('1,"x"y\n', "line 3 and closes in line 3 in the middle"),
        ('1,q\r2,"x\r3,y\r', "line 4 and is never closed"),
        ('1,"', "line 3 and is never closed"),
        ("1,x\n2,\0y\n", "line 4, has a NUL byte"),
        ("1,x\n2\n", r"Expected 2 columns, got 1: 2"),
        ("1,x,y\n", r"Expected 2 columns, got 3: 1,x,y"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_rows_are_never_lost_in_a_quote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: str, is_streamed: bool
) -> None:
    """Errors name the line of an open quote, a NUL byte or a wrong number of values."""
    (tmp_path / "t.csv").write_text(f"id,a\n0,q\n{content}", newline="")
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", len("id,a\n0,q\n"))
        monkeypatch.setattr("cerebro.data.tables.text_check._BLOCK_BYTES", 3)
    elif "Expected" in expected:
        expected = f"Row #.: {expected}"
    with pytest.raises(MetadataError, match=rf"t\.csv.*{expected}"):
        read({"train": f"{tmp_path}/t.csv"})


def test_an_open_quote_in_the_header_is_an_error(tmp_path: Path) -> None:
    """Otherwise the whole file would be one column name."""
    (tmp_path / "t.csv").write_text('"id,a\n1,x\n')
    with pytest.raises(MetadataError, match="line 1 and is never closed"):
        read({"train": f"{tmp_path}/t.csv"})


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("blank", ["\n", "\r\n\r\n", "\ufeff\n"])
def test_empty_lines_before_the_header_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str, is_streamed: bool
) -> None:
    """Also if a file has no rows."""
    end = "\r\n" if "\r" in blank else "\n"
    for number in range(3):
        lines = ["id,x", "1,2", "3,4"] if number else ["id,x"]
        (tmp_path / f"{number}.csv").write_text(blank + end.join(lines), newline="")
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 20)
    found = read({"train": f"{tmp_path}/1.csv", "valid": str(tmp_path)})
    assert [table["x"].to_pylist() for table in found.values()] == [[2, 4], [2, 4, 2, 4]]
    assert parse_table(f"{blank}id,x{end}1,2".encode(), "t.csv").to_pydict() == {"id": [1], "x": [2]}


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('id,a\n1,5" disk\n2,"two\nlines"\n3,"a ""b"""\n', ['5" disk', "two\nlines", 'a "b"']),
        ("id,a\r1,x\r\n2,y\n3,z", ["x", "y", "z"]),
        ('\ufeff"id",a\r\n1,x\r\n2,y\r\n', ["x", "y"]),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_unusual_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, rows: list[str], is_streamed: bool
) -> None:
    """Quotes inside a value, values over several lines, mixed line ends, a byte order mark."""
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", len(content.encode()) - 1)
        monkeypatch.setattr("cerebro.data.tables.text_check._BLOCK_BYTES", 3)
    (tmp_path / "t.csv").write_text(content, newline="")
    assert read({"train": f"{tmp_path}/t.csv"})["train"]["a"].to_pylist() == rows
