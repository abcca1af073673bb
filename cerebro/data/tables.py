"""Plain tables: metadata as users write it, predictions as they read them. Column names and values, no
tensors' shapes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.durable import DurableFile
from cerebro.data.table_files import Format, format_of
from cerebro.errors import DataError, MetadataError
from cerebro.ragged_rows import Ragged

TEXT_BLOCK_BYTES = 2 << 20
"""Of text that is parsed at once; no line may be longer."""
_MATRIX = 2
_DELIMITERS: Mapping[Format, str] = {"CSV": ",", "TSV": "\t"}
_READ = pa.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES)


def parse_table(content: bytes, name: str, types: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """A table of the format that its name tells: CSV, TSV or Parquet.

    Args:
        types: of columns of text; what is not named is told from all values of the column.

    Raises:
        MetadataError: it is not what its name says.
    """
    form = format_of(name)
    try:
        if form == "Parquet":
            return pa.parquet.read_table(io.BytesIO(content))
        options = text_options(form, content)
        given = {column: pa.type_for_alias(kind) for column, kind in types.items()}
        convert = pa.csv.ConvertOptions(column_types=given)
        table = pa.csv.read_csv(io.BytesIO(content), _READ, options, convert)
        return _as_written(table, content, options, given)
    except pa.ArrowException as cause:
        raise MetadataError(f"{name} cannot be read as {form}: {cause}") from cause


def text_options(form: Format, sample: bytes) -> pa.csv.ParseOptions:
    """How text is parsed: a value may span lines only if there are quotes, and looking for such values takes time."""
    return pa.csv.ParseOptions(delimiter=_DELIMITERS[form], newlines_in_values=b'"' in sample)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def ids_as_text(ids: pa.Array) -> list[bytes]:
    """Ids, which are whole numbers or text, as UTF-8 text. None may be missing, or `None` stands for it."""
    found: list[bytes] = ids.cast(pa.string()).cast(pa.binary()).to_pylist()
    return found


def column_names(name: str, head: bytes) -> tuple[str, ...] | None:
    """Columns of the table `name`, told from its first bytes; `None` if these do not: Parquet has them last."""
    text = head.decode("utf-8-sig", errors="ignore")
    form = format_of(name)
    if form == "Parquet" or "\n" not in text:
        return None
    try:
        line = next(csv.reader(io.StringIO(text), delimiter=_DELIMITERS[form]), [])
    except csv.Error:
        return None
    return tuple(line) or None


def parquet_column_names(content: BinaryIO) -> tuple[str, ...] | None:
    """Columns of a Parquet file, of which only the end is read; `None` if it is none."""
    try:
        return tuple(pa.parquet.read_schema(content).names)
    except (pa.ArrowException, OSError):
        return None


def _as_written(
    table: pa.Table, content: bytes, options: pa.csv.ParseOptions, given: Mapping[str, pa.DataType]
) -> pa.Table:
    """The table with text wherever a number would read differently from what the file says.

    ``0001`` names an object, it is not the number 1; and an id must come back as it was given.
    """
    names = table.column_names
    if len(set(names)) < len(names):
        return table
    text = pa.csv.read_csv(
        io.BytesIO(content),
        _READ,
        options,
        pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    for position, name in enumerate(names):
        column, written = table.column(name), text.column(name)
        is_whole = pa.types.is_integer(column.type)
        if name in given:
            continue
        if (name == "id" and not is_whole) or (is_whole and not _is_same(column.cast(pa.string()), written)):
            table = table.set_column(position, name, written)
    return table


def _is_same(read: pa.ChunkedArray, written: pa.ChunkedArray) -> bool:
    """Whether texts are equal; where nothing was read, nothing may be written."""
    return bool(pc.all(pc.equal(pc.fill_null(read, ""), written)).as_py() is not False)


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow IPC file, durably and in one step. Its folder has to be there."""
    file = DurableFile(path, makes_folder=False)
    try:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        file.commit()
    finally:
        file.discard()


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write equally long columns: lists, a `Ragged`, or arrays whose first dimension is the row; further ones become
    lists.

    Raises:
        DataError: a column has values that cannot be stored beside each other.
    """
    write_table(path, pa.table({name: _arrow(name, column) for name, column in columns.items()}))


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a file that `write_columns` wrote, as Python values."""
    with pa.memory_map(str(path)) as source:
        columns: dict[str, list[Any]] = pa.ipc.open_file(source).read_all().to_pydict()
    return columns


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
    """Lists of numbers; where an entry has several, of lists of them."""
    sizes = rows.values.shape[1:]
    if 0 in sizes:
        return pa.array([row.tolist() for row in rows])
    entries = pa.array(rows.values.reshape(-1))
    for size in reversed(sizes):
        entries = pa.FixedSizeListArray.from_arrays(entries, size)
    return pa.LargeListArray.from_arrays(pa.array(rows.offsets), entries)
