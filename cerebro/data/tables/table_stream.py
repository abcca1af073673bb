"""Metadata tables of any size as record batches with one schema, in bounded memory.

The controller's preparation and previews (`locators`) read rows through `TableStream`; Parquet is implemented here,
text in `text_stream`. `pyarrow.dataset` decodes a full row group of a Parquet file at once and infers the types of a
CSV file from its first megabyte only, so Arrow's file readers are used
(docs/decisions/0053-tables-larger-than-memory.md). The module does not know the meaning of columns other than `id`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol, get_args

import pyarrow as pa
import pyarrow.parquet

from cerebro.contract.base import Split
from cerebro.contract.records import ColumnType
from cerebro.data.objects.folder import FolderStore
from cerebro.data.tables.cell_types import joined
from cerebro.data.tables.table_files import TableFile, TableFiles
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
_MAX_NAMED = 5
SAMPLE_BYTES = 8 << 20
"""Bytes of text for type inference; smaller tables are checked completely."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive rows of a file.

    Attributes:
        first: number of the first row in its file, from 1.
    """

    file: TableFile
    first: int
    batch: pa.RecordBatch


class SplitTypesError(MetadataError):
    """Two splits have incompatible types for a column."""


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

    def first(self, most: int) -> pa.Table:
        """Return at least the first `most` rows, if there are as many; a small table completely.

        Raises as `rows` does.
        """


def open_tables(
    files: TableFiles, types: Mapping[str, str], other_types: Mapping[str, str] = MappingProxyType({})
) -> TableStream:
    """Open the rows of table files.

    Args:
        files: the files.
        types: types of text columns from the locator.
        other_types: types from the locators of other splits, by column.

    Raises:
        LocatorError: a file cannot be read.
        MetadataError: a file is not a table, columns differ from the first file's, or types refer to missing columns or
            to Parquet.
    """
    if files.format == "Parquet":
        if types:
            raise MetadataError(
                f"{files.uri} is Parquet, which has types of its own: leave `types` out of the locator"
            )
        return ParquetStream(files)
    from cerebro.data.tables.text_stream import TextStream

    return TextStream(files, types, other_types)


def open_splits(tables: Mapping[Split, tuple[TableFiles, Mapping[str, str]]]) -> dict[Split, TableStream]:
    """Open the tables of several splits and give each column one type.

    Args:
        tables: split -> its files and the types in its locator. Types apply to the text files of all splits.

    Raises:
        LocatorError, MetadataError: as `open_tables` raises.
        SplitTypesError: two splits have incompatible types for a column.
    """
    all_types: dict[str, str] = {}
    for _, types in tables.values():
        all_types.update(types)
    streams = {split: open_tables(files, types, all_types) for split, (files, types) in tables.items()}
    for name in dict.fromkeys(name for stream in streams.values() for name in stream.schema.names):
        # `require_columns` refuses duplicate names.
        _unify(name, {split: each for split, each in streams.items() if each.schema.names.count(name) == 1})
    return streams


def _unify(name: str, streams: Mapping[Split, TableStream]) -> None:
    kinds = {split: stream.schema.field(name).type for split, stream in streams.items()}
    if len(set(kinds.values())) <= 1:
        return
    kinds.update((split, pa.null()) for split, stream in streams.items() if name in stream.empty)
    fixed = {split: kinds[split] for split, stream in streams.items() if name in stream.fixed}
    kind, is_free = joined([*kinds.values()]), all(pa.types.is_null(each) for each in fixed.values())
    if not is_free:
        try:
            kind = _unified([pa.schema([(name, each)]) for each in fixed.values()]).field(name).type
        except pa.ArrowException as error:
            listed = " and ".join(f"{each} in {split!r}" for split, each in fixed.items())
            raise SplitTypesError(
                f"column {name!r} is {listed}: a column needs one type in all splits, so write the tables with one"
            ) from error
        if any(name not in stream.fixed and name not in stream.empty for stream in streams.values()):
            kind = _as_of_text(kind)
    problems = {split: stream.retype(name, kind) for split, stream in streams.items()}
    split, problem = next(((split, each) for split, each in problems.items() if each), ("", ""))
    if problem and is_free:
        for stream in streams.values():
            stream.retype(name, pa.string())
    elif problem:
        alias = next((each for each in get_args(ColumnType) if pa.type_for_alias(each) == kind), None)
        named = (
            f"Give the text files 'types': {{{name!r}: {alias!r}}} in the locator, or write"
            if alias
            else "Write"
        )
        raise SplitTypesError(
            f"column {name!r} is {kind} in {next(iter(fixed))!r}, but {problem} in {split!r}: a column needs one type "
            f"in all splits. {named} the tables with one type"
        )


def _unified(schemas: list[pa.Schema]) -> pa.Schema:
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


def _as_of_text(kind: pa.DataType) -> pa.DataType:
    """Return the closest type to a Parquet column's that CSV cells can be converted to."""
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_large_string(kind) else kind


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

    def first(self, most: int) -> pa.Table:
        """See `TableStream`."""
        most = max(most, (self.num_rows or 0) if self.num_bytes <= SAMPLE_BYTES else 0)
        batches: list[pa.RecordBatch] = []
        with closing(self.rows()) as rows:
            while sum(batch.num_rows for batch in batches) < most and (part := next(rows, None)):
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
                unified = _unified([unified, schema])
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


def local_or_open(file: TableFile) -> Path | BinaryIO:
    """Return a path or an open file for Arrow's reader.

    Arrow reads a path without Python code. Only a plain folder gives its path, because other stores may restrict
    access.

    Raises:
        LocatorError: the file is missing or unreadable.
    """
    file.store.head(file.name, 1)
    return file.path if type(file.store) is FolderStore else file.store.open(file.name)


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
