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
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.cell_types import as_type, type_of
from cerebro.data.durable import DurableFile
from cerebro.data.table_files import Format, format_of
from cerebro.data.text_check import TextCheck
from cerebro.errors import DataError, MetadataError
from cerebro.ragged_rows import Ragged

TEXT_BLOCK_BYTES = 2 << 20
"""Of text that is parsed at once; no line may be longer."""
_MATRIX = 2
DELIMITERS: Mapping[Format, str] = {"CSV": ",", "TSV": "\t"}
_READ = pa.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES, use_threads=False)
"""With one thread Arrow names the row of an error."""


def parse_table(content: bytes, name: str, types: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """A table of the format that its name tells: CSV, TSV or Parquet.

    Args:
        types: types of text columns. `cell_types.type_of` infers the others from all cells.

    Raises:
        MetadataError: it is not what its name says.
    """
    if format_of(name) == "Parquet":
        try:
            return pa.parquet.read_table(io.BytesIO(content))
        except pa.ArrowException as cause:
            raise MetadataError(f"{name} cannot be read as Parquet: {cause}") from cause
    cells = parse_cells(content, name, types)
    for position, column in enumerate(cells.column_names):
        if column not in types:
            text = whole(cells.column(position))
            kind = type_of(column, text)
            cells = cells.set_column(position, pa.field(column, kind), as_type(text, kind))
    return cells


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


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of a column."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text_options(form: Format, sample: bytes) -> pa.csv.ParseOptions:
    """How text is parsed: a value may span lines only if there are quotes, and looking for such values takes time."""
    return pa.csv.ParseOptions(delimiter=DELIMITERS[form], newlines_in_values=b'"' in sample)


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
    if form == "Parquet" or not ("\n" in text or "\r" in text):
        return None
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS[form])
        line = next(filter(None, rows), [])  # Arrow skips empty lines too
    except csv.Error:
        return None
    return tuple(line) or None


def parquet_column_names(content: BinaryIO) -> tuple[str, ...] | None:
    """Columns of a Parquet file, of which only the end is read; `None` if it is none."""
    try:
        return tuple(pa.parquet.read_schema(content).names)
    except (pa.ArrowException, OSError):
        return None


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
