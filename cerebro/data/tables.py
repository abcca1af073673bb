"""Plain tables: metadata as users write it, predictions as they read them. Column names and values, no
tensors' shapes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.durable import DurableFile
from cerebro.errors import MetadataError

_MATRIX = 2
_PARQUET = (".parquet", ".pq")


def parse_table(content: bytes, name: str) -> pa.Table:
    """A CSV table, or a Parquet one if `name` ends in ``.parquet`` or ``.pq``.

    Raises:
        MetadataError: it is not what its name says.
    """
    is_parquet = name.endswith(_PARQUET)
    try:
        if is_parquet:
            return pa.parquet.read_table(io.BytesIO(content))
        return _as_written(pa.csv.read_csv(io.BytesIO(content)), content)
    except pa.ArrowException as cause:
        raise MetadataError(
            f"{name} cannot be read as {'Parquet' if is_parquet else 'CSV'}: {cause}"
        ) from cause


def column_names(name: str, head: bytes) -> tuple[str, ...] | None:
    """Columns of the table `name`, told from its first bytes; `None` if these do not: Parquet has them last."""
    text = head.decode("utf-8-sig", errors="ignore")
    if name.endswith(_PARQUET) or "\n" not in text:
        return None
    try:
        line = next(csv.reader(io.StringIO(text)), [])
    except csv.Error:
        return None
    return tuple(line) or None


def parquet_column_names(path: Path) -> tuple[str, ...] | None:
    """Columns of a Parquet file, of which only the end is read; `None` if it is none."""
    if not path.name.endswith(_PARQUET):
        return None
    try:
        return tuple(pa.parquet.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return None


def _as_written(table: pa.Table, content: bytes) -> pa.Table:
    """The table with text wherever a number would read differently from what the file says.

    ``0001`` names an object, it is not the number 1; and an id must come back as it was given.
    """
    names = table.column_names
    if len(set(names)) < len(names):
        return table
    text = pa.csv.read_csv(
        io.BytesIO(content),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    for position, name in enumerate(names):
        column, written = table.column(name), text.column(name)
        is_whole = pa.types.is_integer(column.type)
        is_changed = is_whole and column.cast(pa.string()).to_pylist() != _or_none(written.to_pylist())
        if is_changed or (name == "id" and not is_whole):
            table = table.set_column(position, name, written)
    return table


def _or_none(values: list[str | None]) -> list[str | None]:
    return [value or None for value in values]


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
    """Write equally long columns: lists, or arrays whose first dimension is the row; further ones become lists."""
    write_table(path, pa.table({name: _arrow(column) for name, column in columns.items()}))


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a file that `write_columns` wrote, as Python values."""
    with pa.memory_map(str(path)) as source:
        columns: dict[str, list[Any]] = pa.ipc.open_file(source).read_all().to_pydict()
    return columns


def _arrow(column: Any) -> pa.Array:
    if isinstance(column, np.ndarray) and column.ndim >= _MATRIX:
        return pa.array(column.tolist())
    return pa.array(column)
