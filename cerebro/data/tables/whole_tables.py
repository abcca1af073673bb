"""Tables that fit into memory: column names, parsed text, and Arrow files of predictions. Knows columns, not tensors.

`text_stream` parses its sample here; workers write predictions with `write_columns`, and the client reads them with
`read_columns`. Metadata of any size is read by `table_stream`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.files.durable import DurableFile
from cerebro.data.tables.table_files import Format, format_of
from cerebro.data.tables.text_check import TextCheck
from cerebro.errors import DataError, MetadataError
from cerebro.ragged_rows import Ragged

TEXT_BLOCK_BYTES = 2 << 20
"""Bytes of text parsed at once, and maximum length of a line."""
_MATRIX = 2
DELIMITERS: Mapping[Format, str] = {"CSV": ",", "TSV": "\t"}
_READ = pa.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES, use_threads=False)
"""Single-threaded, because Arrow then states the row of an error."""


def parse_cells(content: bytes, name: str, types: Mapping[str, str]) -> pa.Table:
    """Parse CSV or TSV; columns that `types` does not name stay text.

    Raises:
        MetadataError: the content cannot be parsed.
    """
    form = format_of(name)
    TextCheck(name, DELIMITERS[form]).feed(content, is_last=True)
    columns = column_names(name, content + b"\n") or ()
    kinds = {column: pa.string() for column in columns} | {
        column: pa.type_for_alias(kind) for column, kind in types.items()
    }
    options, convert = text_options(form, content), pa.csv.ConvertOptions(column_types=kinds)
    try:
        return pa.csv.read_csv(io.BytesIO(content), _READ, options, convert)
    except pa.ArrowException as cause:
        raise MetadataError(f"{name} cannot be read as {form}: {cause}") from cause


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of a column."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text_options(form: Format, sample: bytes) -> pa.csv.ParseOptions:
    """Return parse options; values may contain line breaks only if there are quotes, because that is slow."""
    return pa.csv.ParseOptions(delimiter=DELIMITERS[form], newlines_in_values=b'"' in sample)


def is_text(kind: pa.DataType) -> bool:
    """Return True if values of a type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def ids_as_text(ids: pa.Array) -> list[bytes]:
    """Return ids (integers or text) as UTF-8. A missing id becomes `None`."""
    texts: list[bytes] = ids.cast(pa.string()).cast(pa.binary()).to_pylist()
    return texts


def column_names(name: str, head: bytes) -> tuple[str, ...] | None:
    """Return the columns of a text table from its first bytes.

    `None` if the bytes are incomplete, or for Parquet.
    """
    text = head.decode("utf-8-sig", errors="ignore")
    form = format_of(name)
    if form == "Parquet" or not ("\n" in text or "\r" in text):
        return None
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS[form])
        line = next(filter(None, rows), [])  # Arrow skips empty lines too
    except csv.Error:
        return None
    return tuple(line) or None


def parquet_column_names(content: BinaryIO) -> tuple[str, ...] | None:
    """Return the columns of a Parquet file from its footer; `None` if it is not Parquet."""
    try:
        return tuple(pa.parquet.read_schema(content).names)
    except (pa.ArrowException, OSError):
        return None


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow IPC file durably and atomically, into an existing folder.

    Raises:
        VolumeError: the volume is not mounted, or the folder was deleted.
    """
    file = DurableFile(path, makes_folder=False)
    try:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        file.commit()
    finally:
        file.discard()


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write equally long columns: lists, a `Ragged`, or arrays with rows on the first axis.

    Further axes become lists.

    Raises:
        DataError: a column's values cannot be stored together.
    """
    write_table(path, pa.table({name: _arrow(name, column) for name, column in columns.items()}))


def read_columns(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a `write_columns` file as Python values."""
    with pa.memory_map(str(path)) as source:
        columns: dict[str, list[Any]] = pa.ipc.open_file(source).read_all().to_pydict()
    return columns


def read_rows(file: BinaryIO, name: str) -> tuple[pa.Array, dict[str, np.ndarray[Any, Any]]]:
    """Return the ids of a `write_columns` file, and the other columns as arrays by name.

    Ids stay an Arrow array, because Python objects of a million texts take a second.

    Args:
        name: name of the file for errors.

    Raises:
        DataError: the file is damaged.
        OSError: the volume cannot be read.
    """
    try:
        table = pa.ipc.open_file(file).read_all()
        ids = combined(table.column("id"))
    except (pa.ArrowException, OSError, KeyError) as cause:
        if isinstance(cause, OSError) and cause.errno is not None:
            raise
        raise DataError(f"{name} cannot be read: {cause}") from cause
    return ids, {
        column: combined(table.column(column)).to_numpy(zero_copy_only=False)
        for column in table.column_names
        if column != "id"
    }


def joined(parts: Sequence[pa.Array], rows: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Return the values of some positions in at least one array; by default all values."""
    typed = [part for part in parts if len(part)] or parts[:1]  # ids of an empty file have no type
    values = pa.chunked_array(typed)
    found: np.ndarray[Any, Any] = (values if rows is None else values.take(pa.array(rows))).to_numpy()
    return found


def _arrow(name: str, column: Any) -> pa.Array:
    try:
        if isinstance(column, Ragged):
            return _lists(column)
        if isinstance(column, np.ndarray) and column.ndim >= _MATRIX:
            return pa.array(column.tolist())
        return pa.array(column)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"column {name!r}: {error}") from error


def _lists(rows: Ragged) -> pa.Array:
    """Return lists of numbers, or nested lists if an entry has several numbers."""
    sizes = rows.values.shape[1:]
    if 0 in sizes:
        return pa.array([row.tolist() for row in rows])
    entries = pa.array(rows.values.reshape(-1))
    for size in reversed(sizes):
        entries = pa.FixedSizeListArray.from_arrays(entries, size)
    return pa.LargeListArray.from_arrays(pa.array(rows.offsets), entries)
