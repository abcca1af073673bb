"""Streamed tables equal tables read as a whole, and contradicting rows are reported."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.records import Locator
from cerebro.data.tables.locators import known_columns, preview_metadata
from cerebro.data.tables.splits import open_tables
from cerebro.data.tables.table_files import table_files
from cerebro.errors import LocatorError, MetadataError, VolumeError
from tests.data.objects.s3 import BUCKET, put, s3_server
from tests.data.rows import parse_table

CELLS = st.sampled_from(
    [
        *("", "0", "1", "-7", "007", "-0", " 5", "12345678901234567890", "0x1F", "0.50", "1e3", "nan", "NA"),
        *("true", "2024-02-29", "2024-02-29 12:00:00", "word", "a,b", "two\nlines", 'a "quote"', "\u00e9"),
    ]
)
COLUMNS = st.lists(
    st.one_of(
        st.lists(st.integers(-20, 10**7).map(str), min_size=9, max_size=9),
        st.lists(CELLS, min_size=9, max_size=9),
    ),
    min_size=1,
    max_size=4,
)


def _written(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def read(uri: str, types: dict[str, str] | None = None) -> pa.Table:
    """Read all rows of a table in pieces."""
    stream = open_tables(table_files(uri), types or {})
    return pa.Table.from_batches([rows.batch for rows in stream.rows()], stream.schema)


@given(columns=COLUMNS, parts=st.integers(1, 4))
def test_pieces_are_read_like_the_whole_table(
    tmp_path_factory: pytest.TempPathFactory, columns: list[list[str]], parts: int
) -> None:
    """The same types and values for any number of files, once the types are known."""
    folder = tmp_path_factory.mktemp("table")
    names = [f"c{n}" for n in range(len(columns))] + ["last"]
    rows = [[*row, f"r{n}"] for n, row in enumerate(zip(*columns, strict=True))]
    whole = _written([names, *rows])
    (folder / "whole.csv").write_bytes(whole)
    size = -(-len(rows) // parts)
    for number, start in enumerate(range(0, len(rows), size)):
        (folder / f"part-{number}.csv").write_bytes(_written([names, *rows[start : start + size]]))
    expected = parse_table(whole, "whole.csv")
    assert read(f"{folder}/whole.csv").equals(expected)
    assert read(f"{folder}/part-*.csv").equals(expected)


LATER = "".join(f"{n},{n}.5,w{n},\n" for n in range(20))


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("0007,1.5,w,", "id", "0007"),
        ("a7,1.5,w,", "id", "a7"),
        (" 7,1.5,w,", "id", " 7"),
        ("-0,1.5,w,", "id", "-0"),
        ("0x1F,1.5,w,", "id", "0x1F"),
        ("12345678901234567890,1.5,w,", "id", "12345678901234567890"),
        ("7,many,w,", "number", "many"),
        ("7,1.5,w,full", "empty", "full"),
    ],
)
def test_a_row_that_contradicts_the_first_rows_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, column: str, value: str
) -> None:
    """With file, row, column, value and fix; no value changes silently."""
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 100)
    path = tmp_path / "t.csv"
    path.write_text(f"id,number,word,empty\n{LATER}{row}\n{LATER}")
    with pytest.raises(MetadataError) as refused:
        read(str(path))
    text = str(refused.value)
    assert f"{path}, row 21, column {column!r}, has {value!r}" in text
    assert "Parquet" in text
    found = read(str(path), {column: "string"})
    assert found.column(column)[20].as_py() == value
    assert found.num_rows == 41


def test_unusual_notations_of_numbers_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, negative and missing numbers after the first rows."""
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 20)
    (tmp_path / "t.csv").write_text(
        "id,n\n" + "".join(f"{n},{n}\n" for n in range(9)) + "9,\n0,-5\n11,0\n12,-10\n"
    )
    assert read(str(tmp_path / "t.csv")).column("n").to_pylist()[9:] == [None, -5, 0, -10]


def test_a_configured_type_applies_from_the_first_row(tmp_path: Path) -> None:
    """From the first row; other values are reported."""
    path = tmp_path / "t.csv"
    path.write_text("id,zip,share\n1,0123,1\n2,4567,2\n")
    types = {"id": "string", "zip": "int64", "share": "float64"}
    assert read(str(path), types).to_pylist()[0] == {"id": "1", "zip": 123, "share": 1.0}
    path.write_text("id,zip\n1,a\n")
    with pytest.raises(MetadataError, match=r"t\.csv.*column #1.*int64.*'a'"):
        read(str(path), types)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("1,2,3,4,5\n", r"after row \d+: .*Expected 4 columns, got 5"),
        ("1,2," + "x" * 5000 + ",\n", r"a line is longer than"),
        ('1,2,"never closed,\n' + LATER, "a quote opens a value in line 22 and is never closed"),
        ("1,2,\udcff,\n", r"row 21, column 'word', cannot be read: invalid UTF8"),
    ],
)
def test_text_that_is_no_table_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str, expected: str
) -> None:
    """With the file and the approximate position."""
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 100)
    monkeypatch.setattr("cerebro.data.tables.text_stream.TEXT_BLOCK_BYTES", 2000)
    (tmp_path / "t.csv").write_text(f"id,number,word,empty\n{LATER}{tail}", errors="surrogateescape")
    with pytest.raises(MetadataError, match=rf"t\.csv.*{expected}"):
        read(str(tmp_path / "t.csv"))


def test_files_of_one_table_have_the_same_columns(tmp_path: Path) -> None:
    """In any order; otherwise both files and the difference are named."""
    for name, table in {"a": {"id": [1], "n": [2]}, "b": {"n": [3], "id": [4]}}.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.csv").write_bytes(_written([list(table), [str(v[0]) for v in table.values()]]))
    assert read(f"{tmp_path}/*.csv").to_pylist() == [{"id": 1, "n": 2}, {"id": 4, "n": 3}]
    assert read(f"{tmp_path}/*.parquet").to_pylist() == [{"id": 1, "n": 2}, {"id": 4, "n": 3}]
    pq.write_table(pa.table({"id": [1], "m": [1.5]}), tmp_path / "c.parquet")
    (tmp_path / "c.csv").write_text("id,m\n1,1\n")
    for form in ("csv", "parquet"):
        with pytest.raises(
            MetadataError, match=rf"c\.{form} has other columns than .*a\.{form}: it lacks 'n' and has 'm'"
        ):
            read(f"{tmp_path}/*.{form}")
    with pytest.raises(LocatorError, match=r"several formats.*a\.csv \(CSV\).*a\.parquet \(Parquet\)"):
        read(str(tmp_path))


def test_types_of_parquet_files_are_joined(tmp_path: Path) -> None:
    """To a wider type if it holds both; dictionaries are decoded. Otherwise the file is named."""
    words = pa.array(["x", "y"]).dictionary_encode()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "word": words}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([3], pa.int64()), "word": ["z"]}), tmp_path / "b.parquet")
    (tmp_path / "single").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "single" / "a.parquet")
    assert read(f"{tmp_path}/single").schema.types == [pa.int32(), pa.string()]
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "word": ["x", "y"]}), tmp_path / "a.parquet")
    assert read(f"{tmp_path}/*.parquet").schema.types == [pa.int64(), pa.string()]
    pq.write_table(pa.table({"id": ["four"], "word": ["z"]}), tmp_path / "c.parquet")
    with pytest.raises(MetadataError, match=r"c\.parquet has other types than .*a\.parquet.*id"):
        read(f"{tmp_path}/*.parquet")


def test_row_groups_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group may exceed memory."""
    monkeypatch.setattr("cerebro.data.tables.parquet_stream.BATCH_BYTES", 1000)
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "t.parquet", row_group_size=1000)
    found = [
        (rows.first, rows.batch.num_rows)
        for rows in open_tables(table_files(f"{tmp_path}/t.parquet"), {}).rows()
    ]
    assert len(found) > 5
    assert found[1][0] == 1 + found[0][1]
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-20])
    with pytest.raises(MetadataError, match=r"t\.parquet cannot be read as Parquet"):
        read(f"{tmp_path}/t.parquet")


def test_batches_are_bounded_by_the_memory_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for dictionary-encoded texts and growing rows; all rows in order."""
    monkeypatch.setattr("cerebro.data.tables.parquet_stream.BATCH_BYTES", 100_000)
    texts = ["short", "s", "t"] * 100 + ["x" * 5000, "y" * 5000] * 300 + ["short"] * 100
    table = pa.table({"id": range(1000), "text": pa.array(texts).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=900)
    rows = list(open_tables(table_files(f"{tmp_path}/t.parquet"), {}).rows())
    assert [each.first for each in rows] == [
        1 + sum(r.batch.num_rows for r in rows[:n]) for n in range(len(rows))
    ]
    assert [text for each in rows for text in each.batch["text"].to_pylist()] == texts
    assert [number for each in rows for number in each.batch["id"].to_pylist()] == list(range(1000))
    sizes = [sum(map(len, each.batch["text"].to_pylist())) for each in rows]
    assert sizes[0] < 1000
    assert len([size for size in sizes if size > 200_000]) <= 2
    assert len(rows) < 60


def test_files_are_not_all_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 1,024 per process."""
    for number in range(40):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"part-{number:02d}.parquet")
    most, whole = [0], pq.ParquetFile.__init__

    def open_files() -> int:
        links = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
        return sum(link.startswith(str(tmp_path)) for link in links)

    def opened(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        most[0] = max(most[0], open_files())

    monkeypatch.setattr(pq.ParquetFile, "__init__", opened)
    assert read(str(tmp_path)).column("id").to_pylist() == list(range(40))
    assert 0 < most[0] < 5


def test_views_become_texts(tmp_path: Path) -> None:
    """Arrow cannot take rows of view types."""
    table = pa.table({"id": ["a", "b"], "raw": [b"1", b"2"]})
    kinds = pa.schema([("id", pa.string_view()), ("raw", pa.binary_view())])
    pq.write_table(table.cast(kinds), tmp_path / "t.parquet")
    found = read(str(tmp_path / "t.parquet"))
    assert found.to_pylist() == table.to_pylist()
    assert found.take([1, 0])["id"].to_pylist() == ["b", "a"]


@pytest.mark.parametrize("name", ["b.csv.gz", "day=2/x.csv", "day=2/x.parquet", "day=2/x.csv.zst"])
def test_no_rows_of_a_folder_are_omitted(tmp_path: Path, name: str) -> None:
    """Including compressed tables and nested folders; a pattern selects others, and images are no tables."""
    (tmp_path / "images").mkdir()
    for other in ("a.csv", "images/a.png", "notes.txt.gz"):
        (tmp_path / other).write_text("id\n1\n")
    assert read(str(tmp_path)).num_rows == 1
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(LocatorError, match=rf"{tmp_path} has .*{name}.*a pattern such as \*\.csv"):
        read(str(tmp_path))
    assert read(f"{tmp_path}/*.csv").num_rows == 1


@pytest.mark.parametrize("first", ["a", "z"])
def test_a_header_alone_has_no_rows(tmp_path: Path, first: str) -> None:
    """With or without a final line break, and in any position among the files."""
    (tmp_path / "m.csv").write_text("id,n\n1,2\n")
    for header in ("id,n", "n,id", "id,n\n", "\ufeffid,n"):
        (tmp_path / f"{first}.csv").write_text(header)
        assert read(str(tmp_path)).select(["id", "n"]).to_pylist() == [{"id": 1, "n": 2}]
    (tmp_path / f"{first}.csv").write_text("id,m")
    with pytest.raises(MetadataError, match="has other columns"):
        read(str(tmp_path))


def test_types_of_unknown_columns_are_refused(tmp_path: Path) -> None:
    """A type for a misspelt column would otherwise be ignored."""
    (tmp_path / "t.csv").write_text("id,zip\n1,0123\n")
    with pytest.raises(
        MetadataError, match=r"types for 'Zip', but .*t\.csv lacks these columns.*'id', 'zip'"
    ):
        read(str(tmp_path / "t.csv"), {"Zip": "int64", "id": "string"})
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t.parquet")
    with pytest.raises(MetadataError, match=r"t\.parquet is Parquet.*leave `types` out"):
        read(str(tmp_path / "t.parquet"), {"id": "string"})


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("empty", r"no table in the folder .*empty: expected files that end in \.csv"),
        ("*.json", r"no file in .* has a name like \*\.json"),
        ("absent.csv", r"absent\.csv does not exist"),
        ("absent/part.csv", "does not exist"),
    ],
)
def test_a_missing_table_is_named(tmp_path: Path, uri: str, expected: str) -> None:
    """A folder without a table, a pattern without matches, a missing file."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(LocatorError, match=expected):
        read(f"{tmp_path}/{uri}")


def test_an_existing_file_with_pattern_characters_is_a_name(tmp_path: Path) -> None:
    """If such a file exists."""
    (tmp_path / "a[1].csv").write_text("id\n1\n")
    (tmp_path / "a1.csv").write_text("id\n2\n")
    assert read(f"{tmp_path}/a[1].csv").to_pylist() == [{"id": 1}]
    assert read(f"{tmp_path}/a[12].csv").to_pylist() == [{"id": 2}]


def test_a_preview_reads_only_the_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a table with later errors; the row count is given if known."""
    rows = "".join(f"{n},{n}\n" for n in range(100))
    (tmp_path / "t.csv").write_text(f"id,n\n{rows}0,oops\n")
    pq.write_table(pa.table({"id": range(100), "n": range(100)}), tmp_path / "t.parquet")

    def preview(name: str) -> tuple[list[Any], int | None]:
        found = preview_metadata("train", Locator(metadata=f"{tmp_path}/{name}"), 2)
        return found.table.to_pylist(), found.rows

    with pytest.raises(MetadataError, match="the id 0 more than once"):
        preview("t.csv")
    (tmp_path / "t.csv").write_text(f"id,n\n{rows}")
    first = [{"id": 0, "n": 0}, {"id": 1, "n": 1}]
    assert preview("t.csv") == preview("t.parquet") == (first, 100)
    monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 100)
    (tmp_path / "t.csv").write_text(f"id,n\n{rows}0,oops\n")
    assert preview("t.csv") == (first, None)
    assert known_columns(f"{tmp_path}/*.csv") == known_columns(f"{tmp_path}/t.parquet") == ("id", "n")


@pytest.mark.slow
def test_previews_of_tables_in_a_bucket_download_only_parts(tmp_path: Path) -> None:
    """Columns and first rows need no copy; a full read downloads the files."""
    with s3_server():
        table = pa.table({"id": range(9), "n": range(9)})
        pq.write_table(table, tmp_path / "t.parquet")
        put("one.parquet", (tmp_path / "t.parquet").read_bytes())
        for number in range(3):
            put(f"parts/part-{number}.csv", _written([["id", "n"], [str(number), "7"]]))
        put("parts/deeper/notes.txt", b"other\n1\n")
        put("parts/_SUCCESS", b"")
        for name, rows in (("one.parquet", 9), ("parts", 3), ("parts/", 3), ("parts/part-[12].csv", 2)):
            uri = f"s3://{BUCKET}/{name}"
            assert known_columns(uri) == ("id", "n")
            found = preview_metadata("train", Locator(metadata=uri), 1)
            assert (found.rows, found.table.num_rows) == (rows, 1)
            fetched = table_files(uri).fetched(tmp_path / name.replace("/", "-"))
            assert fetched.digest()
            assert sum(r.batch.num_rows for r in open_tables(fetched, {}).rows()) == rows
        with pytest.raises(LocatorError, match="does not exist"):
            preview_metadata("train", Locator(metadata=f"s3://{BUCKET}/absent.csv"), 1)
        with pytest.raises(LocatorError, match="no file in"):
            table_files(f"s3://{BUCKET}/parts/x-*.csv")
        put("parts/day=2/part-9.csv", b"id,n\n9,7\n")
        with pytest.raises(LocatorError, match=r"tables in folders.*parts/day=2/part-9\.csv"):
            table_files(f"s3://{BUCKET}/parts")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_an_unreadable_table_is_a_volume_failure(tmp_path: Path, name: str) -> None:
    """Its digest and its rows raise the volume's error with the path. Reading this file raises EIO."""
    (tmp_path / name).symlink_to("/proc/self/mem")
    files = table_files(str(tmp_path / name))
    for read in (files.digest, lambda: open_tables(files, {})):
        with pytest.raises(VolumeError, match=r"\(errno 5\)") as raised:
            read()
        assert raised.value.path == str(tmp_path / name)
