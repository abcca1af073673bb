"""`TableStream`: the rows of a metadata table of any size, as record batches with one schema.

`parquet_stream` and `text_stream` implement it, `splits` opens it for the controller's preparation and previews. Memory
is bounded (docs/decisions/0053-tables-larger-than-memory.md).
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa

from cerebro.data.objects.folder import FolderStore
from cerebro.data.tables.table_files import TableFile
from cerebro.errors import MetadataError

SAMPLE_BYTES = 8 << 20
"""Bytes of text for type inference; smaller tables are checked completely."""
_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive rows of a file.

    Attributes:
        first: number of the first row in its file, from 1.
    """

    file: TableFile
    first: int
    batch: pa.RecordBatch


class TableStream(Protocol):
    """Rows of table files on this machine. Owned by one thread; can be read several times.

    Attributes:
        schema: schema of all batches; not checked for usable columns.
        num_bytes: approximate bytes of all rows in memory.
        num_rows: number of rows; `None` if that needs reading all of them.
    """

    schema: pa.Schema
    num_bytes: int
    num_rows: int | None

    @property
    def fixed(self) -> Collection[str]:
        """Columns whose types are stated by the file or the locator, not inferred from cells."""

    @property
    def empty(self) -> Collection[str]:
        """Columns known to have no values, so their type does not matter."""

    def retype(self, name: str, kind: pa.DataType) -> str | None:
        """Change the type of a column, or return why a cell of the sample rules it out."""

    def rows(self) -> Generator[Rows, None, None]:
        """Yield all rows, file by file.

        Raises:
            LocatorError: a file cannot be read.
            MetadataError: a file is not a table, its columns differ from the first file's, or a value does not match
                the column's type.
        """

    def first(self, max_rows: int) -> pa.Table:
        """Return at least the first `max_rows` rows, if there are as many; a small table completely.

        Raises as `rows` does.
        """


def require_same_columns(
    first: TableFile, names: list[str], other: TableFile, other_names: list[str]
) -> None:
    """Require that two files have the same columns, in any order.

    Raises:
        MetadataError: they differ.
    """
    if set(names) == set(other_names) and len(other_names) == len(names):
        return
    lacks, more = [n for n in names if n not in other_names], [n for n in other_names if n not in names]
    listed = [
        f"{verb} {', '.join(map(repr, each[:_MAX_NAMED]))}"
        for verb, each in (("lacks", lacks), ("has", more))
        if each
    ]
    raise MetadataError(
        f"{other} has other columns than {first}: it {' and '.join(listed) or 'has one of them twice'}. Files of one "
        "table need the same columns"
    )


def local_or_open(file: TableFile) -> Path | BinaryIO:
    """Return a path or an open file for Arrow's reader.

    Arrow reads a path without Python code. Only a plain folder gives its path, because other stores may restrict
    access.

    Raises:
        LocatorError: the file is missing or unreadable.
    """
    file.store.head(file.name, 1)
    return file.path if type(file.store) is FolderStore else file.store.open(file.name)
