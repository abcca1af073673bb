"""CSV and TSV files of any size as record batches. Types are told once, from the first megabytes.

A column that begins with whole numbers is read as text and made into numbers here, because Arrow would read ``0001`` as
the number 1: a later row that is no such number, or is written in another way, is told with its place.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from cerebro.data.table_files import TableFile, TableFiles
from cerebro.data.table_stream import SAMPLE_BYTES, Rows, local_or_open, require_same_columns
from cerebro.data.tables import TEXT_BLOCK_BYTES, column_names, parse_table, text_options
from cerebro.errors import MetadataError

_BYTES_PER_BYTE = 1.5
"""Of memory for each of text, about: a number of four digits takes eight."""
_HEADER_AND_ROW = 2
"""Lines that are needed to tell anything."""
_HEADER_BYTES = 1 << 20
"""A longer file has rows."""
_MARK = b"\xef\xbb\xbf"
_ARROW_SAYS = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): invalid (?:value '(.*)'|(.*))",
    re.DOTALL,
)


class TextStream:
    """See `TableStream`.

    Attributes:
        sample: the first rows, as `parse_table` reads them.
        is_whole: whether these are all.
    """

    def __init__(self, files: TableFiles, types: Mapping[str, str]) -> None:
        found = [(file, file.num_bytes) for file in files.files]
        # Programs leave empty files where a part has no rows.
        found = [(file, size) for file, size in found if size or files.is_one] or found[:1]
        self._files = [file for file, _ in found]
        self._types = types
        text, self.is_whole = _sampled(found)
        self.sample = parse_table(text, str(self._files[0]), types)
        self.schema: pa.Schema = self.sample.schema
        self._require_columns_of_types()
        self.num_bytes = int(sum(size for _, size in found) * _BYTES_PER_BYTE)
        self.num_rows = self.sample.num_rows if self.is_whole else None
        self._options = text_options(files.format, text)
        self._counted = [
            place
            for place, field in enumerate(self.schema)
            if pa.types.is_integer(field.type) and field.name not in types
        ]

    def rows(self) -> Generator[Rows, None, None]:
        """See `TableStream`."""
        if self.is_whole and len(self._files) == 1:
            first = 1
            for batch in self.sample.to_batches():
                yield Rows(file=self._files[0], first=first, batch=batch)
                first += batch.num_rows
            return
        for file in self._files:
            yield from self._of(file)

    def first(self, most: int) -> pa.Table:
        """See `TableStream`. At most as many as there are in the sample."""
        return self.sample

    def _of(self, file: TableFile) -> Generator[Rows, None, None]:
        names, first = self.schema.names, 1
        try:
            if header := _only_header(file):
                require_same_columns(self._files[0], names, file, list(header))
                return
            reader = self._reader(file)
            require_same_columns(self._files[0], names, file, reader.schema.names)
            for batch in reader:
                ordered = batch.select(names)
                columns = [
                    self._whole(file, first, place, column) if place in self._counted else column
                    for place, column in enumerate(ordered.columns)
                ]
                yield Rows(
                    file=file, first=first, batch=pa.RecordBatch.from_arrays(columns, schema=self.schema)
                )
                first += batch.num_rows
        except pa.ArrowException as error:
            raise self._told(file, first, error) from error

    def _require_columns_of_types(self) -> None:
        if absent := [name for name in self._types if name not in self.schema.names]:
            raise MetadataError(
                f"the locator gives types of {', '.join(map(repr, absent))}, and {self._files[0]} has no such column. "
                f"Its columns are {', '.join(map(repr, self.schema.names))}"
            )

    def _reader(self, file: TableFile, *, counts_rows: bool = False) -> pa.csv.CSVStreamingReader:
        kinds = {field.name: field.type for field in self.schema}
        kinds.update((self.schema.names[place], pa.string()) for place in self._counted)
        # Arrow tells the row of an error only if one thread reads.
        options = pa.csv.ReadOptions(block_size=TEXT_BLOCK_BYTES, use_threads=not counts_rows)
        convert = pa.csv.ConvertOptions(column_types=kinds)
        return pa.csv.open_csv(local_or_open(file), options, self._options, convert)

    def _whole(self, file: TableFile, first: int, place: int, text: pa.StringArray) -> pa.Array:
        """Whole numbers from text that says them in the one way in which they would be written."""
        kind, present = self.schema.field(place).type, _non_empty(text)
        try:
            numbers = present.cast(kind)
        except pa.ArrowInvalid:
            numbers = None
        if numbers is not None:
            doubtful = _doubtful(text)
            if not len(doubtful) or numbers.take(doubtful).cast(pa.string()).equals(text.take(doubtful)):
                return numbers
        at = _first_other(text, kind)
        raise self._contradicted(self.schema.names[place], text[at].as_py(), f"{file}, row {first + at:,}")

    def _told(self, file: TableFile, first: int, error: pa.ArrowException) -> MetadataError:
        """What was wrong, with the row, for which the file is read again up to there."""
        said = str(error)
        try:
            for _ in self._reader(file, counts_rows=True):
                pass
        except pa.ArrowException as again:
            said = str(again)
        if found := _ARROW_SAYS.match(said):
            column, row, kind, value, other = found.groups()
            names = column_names(file.name, file.store.head(file.name, SAMPLE_BYTES)) or self.schema.names
            name = names[int(column)]
            where = f"{file}, row {int(row) - 1:,}" if row else f"{file}, after row {first - 1:,}"
            if kind == "string":
                return MetadataError(f"{where}, column {name!r}, cannot be read: invalid {value or other}")
            return self._contradicted(name, value or other, where)
        if "straddling" in said:
            said = f"a line is longer than {TEXT_BLOCK_BYTES >> 20} MiB, or a quote is not closed"
        elif "out of sync" in said:
            said = "a value has a line break in it, and none of the first rows has quotes. Write the table as Parquet"
        return MetadataError(f"{file} cannot be read after row {first - 1:,}: {said}")

    def _contradicted(self, name: str, value: str, where: str) -> MetadataError:
        kind = self.schema.field(name).type
        has = f"{where}, column {name!r}, has {value!r}, but"
        if name in self._types:
            return MetadataError(
                f"{has} the locator says that the column is {kind}: give it another one in `types`, such as 'string'"
            )
        told = "is empty" if pa.types.is_null(kind) else f"is {kind}"
        written = " or is not written as one would be" if pa.types.is_integer(kind) else ""
        return MetadataError(
            f"{has} in the first {SAMPLE_BYTES >> 20} MiB the column {told}, and this is none{written}. Give the "
            f"column a type in the locator, such as 'types': {{{name!r}: 'string'}}, or write the table as Parquet"
        )


def _only_header(file: TableFile) -> tuple[str, ...] | None:
    """Columns of a file that ends in its first line, which Arrow takes for none; `None` for any other."""
    if file.num_bytes > _HEADER_BYTES:
        return None
    text = file.store.head(file.name, _HEADER_BYTES)
    return None if b"\n" in text or b"\r" in text else column_names(file.name, text + b"\n")


def _sampled(files: list[tuple[TableFile, int]]) -> tuple[bytes, bool]:
    """The first lines of all files under one header, and whether these are all lines."""
    parts: list[bytes] = []
    room, header, alone, is_whole = SAMPLE_BYTES, b"", b"", True
    for file, size in files:
        text = file.store.head(file.name, room + 1) if room > 0 else b""
        is_cut = len(text) > room
        ends = _line_ends(text)
        if is_cut and not parts and len(ends) < _HEADER_AND_ROW:
            raise MetadataError(
                f"{file} cannot be read: its first lines are longer than {SAMPLE_BYTES >> 20} MiB"
            )
        if room <= 0 or (is_cut and not len(ends)):
            return b"".join(parts), False
        text = text[: int(ends[-1])] if is_cut else text
        begin = int(ends[0]) if len(ends) else len(text)
        if begin == len(text) and not parts:
            alone = alone or text + b"\n"  # a header without rows tells no types
            continue
        line = text[:begin].removeprefix(_MARK).rstrip(b"\r\n")
        if not parts:
            header, begin = line, 0
        is_whole = is_whole and not is_cut and line == header
        if line == header:
            parts.append(text[begin:] if text.endswith(b"\n") else text[begin:] + b"\n")
        room -= size
    return b"".join(parts) or alone, is_whole


def _line_ends(text: bytes) -> NDArray[np.int64]:
    """Where lines begin that follow another one: after line breaks that are in no quotes."""
    each = np.frombuffer(text, np.uint8)
    is_break = each == ord("\n")
    is_quoted = np.cumsum(each == ord('"'), dtype=np.uint8) & 1  # modulo 256: odd stays odd
    ends = np.flatnonzero(is_break & (is_quoted == 0))
    return (ends if len(ends) else np.flatnonzero(is_break)) + 1


def _parts(text: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of texts."""
    _, offsets, content = text.buffers()
    found = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    return found, np.frombuffer(content, np.uint8) if content else np.zeros(0, np.uint8)


def _non_empty(text: pa.StringArray) -> pa.StringArray:
    """The same texts, null where they are empty."""
    offsets, _ = _parts(text)
    lengths = np.diff(offsets)
    if lengths.all():
        return text
    valid = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
    _, _, content = text.buffers()
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), content, valid)


def _doubtful(text: pa.StringArray) -> NDArray[np.int64]:
    """Which texts may be a number that is written in an unusual way: what begins with 1 to 9 is not."""
    offsets, content = _parts(text)
    longer = np.flatnonzero(np.diff(offsets) > 1)
    return longer[content[offsets[longer]] - np.uint8(ord("1")) > 8]


def _first_other(text: pa.StringArray, kind: pa.DataType) -> int:
    """Number of the first text that is no whole number, or not as it would be written."""
    for at, value in enumerate(text.to_pylist()):
        try:
            if value and pa.scalar(value).cast(kind).cast(pa.string()).as_py() != value:
                return at
        except pa.ArrowException:
            return at
    raise AssertionError("called without one")
