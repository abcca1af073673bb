"""`TableStream` of CSV and TSV files of any size. Types are inferred once, from the first 8 MiB.

Arrow would read `0001` as the number 1. So the stream reads columns as text and converts them with `cell_types`; the
error for a later cell that does not match names file, row and value. Arrow converts only columns with a type in the
locator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from cerebro.contract.records import ColumnType
from cerebro.data.tables.cell_types import as_type, first_other, type_of, type_to_name
from cerebro.data.tables.table_files import TableFile, TableFiles
from cerebro.data.tables.table_stream import SAMPLE_BYTES, Rows, local_or_open, require_same_columns
from cerebro.data.tables.text_check import TextCheck, require_text
from cerebro.data.tables.whole_tables import (
    DELIMITERS,
    TEXT_BLOCK_BYTES,
    column_names,
    combined,
    parse_cells,
    text_options,
)
from cerebro.errors import MetadataError
from cerebro.runtime.volume_errors import volume_errors_named

_ALIASES: tuple[str, ...] = get_args(ColumnType)
_BYTES_PER_BYTE = 1.5
"""Approximate memory bytes per byte of text: a number of four digits takes eight."""
_HEADER_AND_ROW = 2
"""Lines needed for type inference."""
_HEADER_BYTES = 1 << 20
"""A longer file has rows."""
_MARK = b"\xef\xbb\xbf"
_ARROW_SAYS = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): invalid (?:value '(.*)'|(.*))",
    re.DOTALL,
)


class TextStream:
    """A `TableStream` of CSV or TSV files.

    Args:
        types: types from the table's locator.
        other_types: types from the locators of other splits.

    Attributes:
        is_whole: True if the sample has all rows.
    """

    def __init__(
        self,
        files: TableFiles,
        types: Mapping[str, str],
        other_types: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        sized_files = [(file, file.num_bytes) for file in files.files]
        # Some programs write empty files for parts without rows.
        sized_files = [(file, size) for file, size in sized_files if size or files.is_one] or sized_files[:1]
        self._files = [file for file, _ in sized_files]
        text, self.is_whole = _sampled(sized_files)
        name = str(self._files[0])
        known = column_names(name, text + b"\n") or ()
        self._types = {column: kind for column, kind in other_types.items() if column in known} | dict(types)
        self._cells = parse_cells(text, name, self._types)
        self.schema: pa.Schema = self._cells.schema
        for position, field in enumerate(self.schema):
            if field.name not in self._types:
                kind = type_of(field.name, combined(self._cells.column(position)))
                self.schema = self.schema.set(position, field.with_type(kind))
        self._require_columns_of_types()
        self.num_bytes = int(sum(size for _, size in sized_files) * _BYTES_PER_BYTE)
        self.num_rows = self._cells.num_rows if self.is_whole else None
        self._options = text_options(files.format, text)

    @property
    def fixed(self) -> Collection[str]:
        """See `TableStream`."""
        return self._types.keys()

    @property
    def empty(self) -> Collection[str]:
        """See `TableStream`. Later rows can have values in any column."""
        return ()

    def retype(self, name: str, kind: pa.DataType) -> str | None:
        """See `TableStream`."""
        position = self.schema.names.index(name)
        if name in self._types:
            new_type = next((alias for alias in _ALIASES if pa.type_for_alias(alias) == kind), None)
            if new_type is None:
                return f"is {self._types[name]} by the locator"
            self._types[name] = new_type
        else:
            cells = combined(self._cells.column(position))
            if as_type(cells, kind, is_id=name == "id") is None:
                return f"has {cells[first_other(cells, kind, is_id=name == 'id')].as_py()!r}"
        self.schema = self.schema.set(position, self.schema.field(position).with_type(kind))
        return None

    @property
    def sample(self) -> pa.Table:
        """The first rows with their types."""
        columns = [
            combined(cells) if field.name in self._types else as_type(combined(cells), field.type)
            for field, cells in zip(self.schema, self._cells.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def rows(self) -> Generator[Rows, None, None]:
        """See `TableStream`."""
        if self.is_whole and len(self._files) == 1:
            yield from (Rows(file=self._files[0], first=1, batch=batch) for batch in self.sample.to_batches())
            return
        for file in self._files:
            with volume_errors_named(Path(str(file)), may_deny=False):
                yield from self._file_rows(file)

    def first(self, max_rows: int) -> pa.Table:
        """Return the sample, which may have fewer rows."""
        return self.sample

    def _file_rows(self, file: TableFile) -> Generator[Rows, None, None]:
        names, first = self.schema.names, 1
        if not self.is_whole:
            with file.store.open(file.name) as content:
                require_text(content, str(file), DELIMITERS[file.format])
        try:
            if header := _only_header(file):
                require_same_columns(self._files[0], names, file, list(header))
                return
            reader = self._reader(file)
            require_same_columns(self._files[0], names, file, reader.schema.names)
            for batch in reader:
                ordered = batch.select(names)
                columns = [
                    column if field.name in self._types else self._typed(file, first, field, column)
                    for field, column in zip(self.schema, ordered.columns, strict=True)
                ]
                yield Rows(
                    file=file, first=first, batch=pa.RecordBatch.from_arrays(columns, schema=self.schema)
                )
                first += batch.num_rows
        except pa.ArrowException as error:
            raise self._error_with_row(file, first, error) from error

    def _require_columns_of_types(self) -> None:
        if absent := [name for name in self._types if name not in self.schema.names]:
            raise MetadataError(
                f"the locator has types for {', '.join(map(repr, absent))}, but {self._files[0]} lacks these columns. "
                f"Its columns are {', '.join(map(repr, self.schema.names))}"
            )

    def _reader(self, file: TableFile, *, counts_rows: bool = False) -> pa.csv.CSVStreamingReader:
        kinds = dict.fromkeys(self.schema.names, pa.string())
        kinds.update((name, pa.type_for_alias(kind)) for name, kind in self._types.items())
        # Arrow states the row of an error only with a single thread.
        options = pa.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES, use_threads=not counts_rows)
        convert = pa.csv.ConvertOptions(column_types=kinds)
        return pa.csv.open_csv(local_or_open(file), options, self._options, convert)

    def _typed(self, file: TableFile, first: int, field: pa.Field, text: pa.StringArray) -> pa.Array:
        """Convert a batch's cells, or name the first cell that does not fit."""
        is_id = field.name == "id"
        values = as_type(text, field.type, is_decided=True, is_id=is_id)
        if values is None:
            at = first_other(text, field.type, is_decided=True, is_id=is_id)
            raise self._contradicted(field.name, text[at].as_py(), f"{file}, row {first + at:,}")
        return values

    def _error_with_row(self, file: TableFile, first: int, error: pa.ArrowException) -> MetadataError:
        """Return the error with its row, after reading the file again up to there."""
        message = str(error)
        try:
            for _ in self._reader(file, counts_rows=True):
                pass
        except pa.ArrowException as again:
            message = str(again)
        if match := _ARROW_SAYS.match(message):
            column, row, kind, value, other = match.groups()
            names = column_names(file.name, file.store.head(file.name, SAMPLE_BYTES)) or self.schema.names
            name = names[int(column)]
            where = f"{file}, row {int(row) - 1:,}" if row else f"{file}, after row {first - 1:,}"
            if kind == "string":
                return MetadataError(f"{where}, column {name!r}, cannot be read: invalid {value or other}")
            return self._contradicted(name, value or other, where)
        if "straddling" in message:
            message = f"a line is longer than {TEXT_BLOCK_BYTES >> 20} MiB, or a quote is not closed"
        elif "out of sync" in message:
            message = (
                "a value has a line break, but the first rows have no quotes. Write the table as Parquet"
            )
        return MetadataError(f"{file} cannot be read after row {first - 1:,}: {message}")

    def _contradicted(self, name: str, value: str, where: str) -> MetadataError:
        kind = self.schema.field(name).type
        has = f"{where}, column {name!r}, has {value!r}, but"
        if name in self._types:
            return MetadataError(
                f"{has} the column is {kind} by the locator. Change its type in `types`, for example to 'string'"
            )
        inferred = "is empty" if pa.types.is_null(kind) else f"is {kind}"
        return MetadataError(
            f"{has} in the first {SAMPLE_BYTES >> 20} MiB the column {inferred}, and this cell does not match. "
            f"Give the column a type in the locator, such as 'types': "
            f"{{{name!r}: {type_to_name(kind, value)!r}}}, or write the table as Parquet"
        )


def _only_header(file: TableFile) -> tuple[str, ...] | None:
    """Return the columns of a file without rows, which Arrow does not accept; else `None`."""
    if file.num_bytes > _HEADER_BYTES:
        return None
    text = file.store.head(file.name, _HEADER_BYTES).removeprefix(_MARK).lstrip(b"\r\n")
    return None if b"\n" in text or b"\r" in text else column_names(file.name, text + b"\n")


def _sampled(files: list[tuple[TableFile, int]]) -> tuple[bytes, bool]:
    """Return the first lines of all files under one header, and True if they are all lines."""
    parts: list[bytes] = []
    room, header, alone, is_whole = SAMPLE_BYTES, b"", b"", True
    for file, size in files:
        with volume_errors_named(Path(str(file)), may_deny=False):
            text = file.store.head(file.name, room + 1) if room > 0 else b""
        is_cut = len(text) > room
        ends = _row_starts(file, text, is_cut=is_cut)
        blank = len(text) - len(text.removeprefix(_MARK).lstrip(b"\r\n"))
        ends = ends[ends > blank]  # the header is the first non-empty line
        if is_cut and not parts and len(ends) < _HEADER_AND_ROW:
            raise MetadataError(
                f"{file} cannot be read: its first lines are longer than {SAMPLE_BYTES >> 20} MiB"
            )
        if room <= 0 or (is_cut and not len(ends)):
            return b"".join(parts), False
        text = text[: int(ends[-1])] if is_cut else text
        begin = int(ends[0]) if len(ends) else len(text)
        if begin == len(text) and not parts:
            alone = alone or text + b"\n"  # a header without rows determines no types
            continue
        line = text[blank:begin].rstrip(b"\r\n")
        if not parts:
            header, begin = line, 0
        is_whole = is_whole and not is_cut and line == header
        if line == header:
            parts.append(text[begin:] if text.endswith((b"\n", b"\r")) else text[begin:] + b"\n")
        room -= size
    return b"".join(parts) or alone, is_whole


def _row_starts(file: TableFile, text: bytes, *, is_cut: bool) -> NDArray[np.int64]:
    """Return the positions of rows after the first."""
    return TextCheck(str(file), DELIMITERS[file.format]).row_starts(text, is_cut=is_cut)
