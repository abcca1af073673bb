"""`TableStream` of Parquet files of any size.

`pyarrow.dataset` decodes a full row group at once; this stream reads parts of it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from cerebro.data.tables.table_files import TableFile, TableFiles
from cerebro.data.tables.table_stream import SAMPLE_BYTES, Rows, local_or_open, require_same_columns
from cerebro.errors import MetadataError
from cerebro.runtime.volume_errors import volume_errors_named

BATCH_BYTES = 8 << 20
"""Approximate bytes of a record batch."""
_FIRST_ROWS, _MAX_ROWS = 64, 1 << 14
"""Rows of a row group's first batch, and maximum rows of a batch.

The first batch determines the size of the others.
"""
_TOO_LARGE = 2
"""Ratio of actual to intended size above which the next batches get smaller."""
_COLUMN_BUFFER_BYTES = 1 << 18


class ParquetStream:
    """A `TableStream` of Parquet files; decodes parts of a row group, which may be larger than memory."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files.files
        schemas: list[pa.Schema] = []
        empty: list[set[str]] = []
        rows = self.num_bytes = 0
        for file in self._files:
            with self._opened(file) as opened:
                schemas.append(opened.schema_arrow)
                rows += opened.metadata.num_rows
                empty.append(_empty_columns(opened))
                self.num_bytes += _decoded_bytes(opened)
            require_same_columns(self._files[0], schemas[0].names, file, schemas[-1].names)
        self.num_rows: int | None = rows
        self.empty: Collection[str] = set[str].intersection(*empty)
        self.schema = plain(self._unified(schemas))

    @property
    def fixed(self) -> Collection[str]:
        """Columns with a type from the file; see `TableStream`."""
        return [name for name in self.schema.names if name not in self.empty]

    def retype(self, name: str, kind: pa.DataType) -> str | None:
        """See `TableStream`. `rows` raises for values that the type cannot hold."""
        position = self.schema.names.index(name)
        self.schema = self.schema.set(position, self.schema.field(position).with_type(kind))
        return None

    def rows(self) -> Generator[Rows, None, None]:
        """See `TableStream`."""
        for file in self._files:
            first = 1
            try:
                with volume_errors_named(Path(str(file)), may_deny=False), self._opened(file) as opened:
                    for group in range(opened.num_row_groups):
                        for batch in _batches(opened, group):
                            yield Rows(file=file, first=first, batch=self._cast(file, batch))
                            first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise MetadataError(
                    f"{file} cannot be read as Parquet after row {first - 1:,}: {error}"
                ) from error

    def first(self, max_rows: int) -> pa.Table:
        """See `TableStream`."""
        max_rows = max(max_rows, (self.num_rows or 0) if self.num_bytes <= SAMPLE_BYTES else 0)
        batches: list[pa.RecordBatch] = []
        with closing(self.rows()) as rows:
            while sum(batch.num_rows for batch in batches) < max_rows and (part := next(rows, None)):
                batches.append(part.batch)
        return pa.Table.from_batches(batches, self.schema)

    @contextmanager
    def _opened(self, file: TableFile) -> Iterator[pyarrow.parquet.ParquetFile]:
        try:
            with volume_errors_named(Path(str(file)), may_deny=False):
                source = local_or_open(file)
                opened = pyarrow.parquet.ParquetFile(
                    source, buffer_size=_COLUMN_BUFFER_BYTES, pre_buffer=False
                )
        except (pa.ArrowException, OSError) as error:
            raise MetadataError(f"{file} cannot be read as Parquet: {error}") from error
        try:
            yield opened
        finally:
            opened.close(force=True)

    def _unified(self, schemas: list[pa.Schema]) -> pa.Schema:
        unified = schemas[0]
        for file, schema in zip(self._files[1:], schemas[1:], strict=True):
            try:
                unified = unify_schemas([unified, schema])
            except pa.ArrowException as error:
                raise MetadataError(f"{file} has other types than {self._files[0]}: {error}") from error
        return unified

    def _cast(self, file: TableFile, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema):
            return batch
        columns = []
        for field in self.schema:
            column = batch.column(batch.schema.get_field_index(field.name))
            if column.null_count == len(column):
                columns.append(pa.nulls(len(column), field.type))
                continue
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowException as error:
                raise MetadataError(
                    f"{file}, column {field.name!r}, is {column.type}, and {field.type} in other files or splits: "
                    f"{error}"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionary and view types.

    The values of a dictionary would have to be known before the first row, and Arrow cannot take rows of views.
    """
    for position, field in enumerate(schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string_view(kind):
            kind = pa.large_string()
        elif pa.types.is_binary_view(kind):
            kind = pa.large_binary()
        schema = schema.set(position, field.with_type(kind))
    return schema


def _batches(file: pyarrow.parquet.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
    """Yield a row group in batches of about `BATCH_BYTES` in memory.

    The file does not state the size in memory, because a page may repeat a long text by its number. If rows get longer,
    the group is read again in smaller batches, skipping the rows yielded before.
    """
    total, done, size = file.metadata.row_group(group).num_rows, 0, _FIRST_ROWS
    while done < total:
        at, wanted = 0, size
        for batch in file.iter_batches(batch_size=size, row_groups=[group]):
            fresh = batch.slice(max(0, done - at))
            at += batch.num_rows
            if not fresh.num_rows:
                continue
            yield fresh
            done += fresh.num_rows
            wanted = max(1, min(_MAX_ROWS, BATCH_BYTES * fresh.num_rows // max(1, fresh.nbytes)))
            if wanted < size // _TOO_LARGE or done == _FIRST_ROWS < wanted:
                break
        size = wanted


def unify_schemas(schemas: list[pa.Schema]) -> pa.Schema:
    """Return the types that hold the values of all schemas; `pa.ArrowException` if there are none."""
    unified = pa.unify_schemas(schemas, promote_options="permissive")
    for schema in schemas:
        for field in schema:
            kind = unified.field(field.name).type
            if _decimals(field.type) > _decimals(kind):
                raise pa.ArrowTypeError(
                    f"{kind} cannot hold each value of {field.type} in column {field.name!r}"
                )
    return unified


def _decimals(kind: pa.DataType) -> int:
    """Count the decimal types in a type, which may be nested."""
    if pa.types.is_dictionary(kind):
        return _decimals(kind.value_type)
    inner = sum(_decimals(kind.field(position).type) for position in range(kind.num_fields))
    return inner + bool(pa.types.is_decimal(kind))


def _empty_columns(file: pyarrow.parquet.ParquetFile) -> set[str]:
    """Return columns with only nulls, without nested ones, whose statistics count an empty list as null."""
    metadata = file.metadata
    empty = set(file.schema_arrow.names)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [(each, each.statistics) for each in map(group.column, range(group.num_columns))]
        empty &= {
            column.path_in_schema
            for column, statistics in columns
            if statistics and statistics.has_null_count and statistics.null_count == group.num_rows
        }
    return empty


def _decoded_bytes(file: pyarrow.parquet.ParquetFile) -> int:
    """Return the bytes of uncompressed pages.

    A column with few distinct texts takes several times as much in memory.
    """
    metadata = file.metadata
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
