"""Rows of complete partitions as memory-mapped columns, and the gather that copies them into batches.

`cerebro.data.loader` decides order and batches, and makes tensors. A batch is one copy per field from the page cache,
for any number of shards, without Python code per row or shard. (A copy per shard made batches from eight shards a fifth
slower, and from a hundred several times slower.) Ragged fields gather entries like rows; long rows are copied row by
row. Files are never written. The module does not know torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cerebro.data.fields import OFFSET, Field, Layout
from cerebro.data.files.durable import Written, verify
from cerebro.data.manifests import PartitionManifest, ShardEntry
from cerebro.data.partitions import PARTITION_FILE, read_manifest
from cerebro.data.shards import column_type
from cerebro.data.trees import Array, RowId
from cerebro.errors import DataError, RowError, ShardCorruptError
from cerebro.ragged_rows import Ragged
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named

_PLANNED_BATCHES = 64  # batches whose rows are located at a time
_MAX_BYTES = 1 << 62  # maximum bytes of a NumPy array, with a margin
_LARGE_ROW = 1 << 14  # bytes of a row; copying it takes longer than the Python code for it
_LONG_ROW = 128  # entries per row above which rows are copied one by one


Allocate: TypeAlias = "Callable[[int], NDArray[np.uint8]]"
"""Returns writable memory of so many bytes, which no one else uses."""

_Gather: TypeAlias = "Callable[[int, int, Allocate | None], Array | Ragged]"
"""Copies a range (begin, end) of the planned rows, into memory of `Allocate` if it can."""


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """One record batch over the mapped file, read-only.

    Each field is an array of shape (rows, *field shape), or a `Ragged`.
    """

    columns: Sequence[Array | Ragged]
    ids: pa.Array


class _Column:
    """One field of all rows as a single array, although its chunks are in different files.

    The array spans from the lowest chunk in memory to the end of the highest. Its elements are overlapping rows that
    start every `stride` bytes, the largest step that meets the first byte of every row of every chunk. So each row has
    an index, and NumPy's indexing gathers rows of all chunks at once. Memory between the chunks is never read, because
    no row has an index there.
    """

    def __init__(self, field: Field, chunks: Sequence[Array]) -> None:
        self._shape, self._dtype = field.entry_shape, field.storage
        self._chunks = chunks  # keeps the mappings alive
        self._entry_bytes = size = field.entry_bytes
        starts = np.array([chunk.__array_interface__["data"][0] for chunk in chunks], np.int64)
        lowest = int(starts.argmin())
        starts -= starts[lowest]
        stride = int(np.gcd.reduce(starts, initial=size)) or 1
        self._starts, self.step = starts // stride, size // stride
        last = self._starts + self.step * (np.array([len(chunk) for chunk in chunks]) - 1)
        length = int(last.max()) + 1
        self.rows: Array | None = None
        """All rows, one opaque element each; `None` without bytes or if too large for one array."""
        if 0 < size * length < _MAX_BYTES:
            first = chunks[lowest].reshape(-1).view(f"V{size}")
            self.rows = as_strided(first, shape=(length,), strides=(stride,), writeable=False)

    def indices(self, chunk: NDArray[np.int64], local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the argument of `gather` for rows `local` of the chunks `chunk`."""
        if self.rows is None:
            return np.stack([chunk, local], axis=1)
        return self._starts[chunk] + local * self.step

    def planned(self, chunk: NDArray[np.int64], local: NDArray[np.int64]) -> _Gather:
        """Return a gather for rows `local` of the chunks `chunk`, of shape (rows, *field shape)."""
        indices = self.indices(chunk, local)

        def gather(begin: int, end: int, allocate: Allocate | None) -> Array:
            if allocate is None or self._entry_bytes < _LARGE_ROW:
                return self.gather(indices[begin:end])
            memory = allocate((end - begin) * self._entry_bytes)
            copy = memory.view(self._dtype).reshape(end - begin, *self._shape)
            part = zip(chunk[begin:end].tolist(), local[begin:end].tolist(), strict=True)
            for position, (which, row) in enumerate(part):
                copy[position] = self._chunks[which][row]
            return copy

        return gather

    def gather(self, indices: NDArray[np.int64]) -> Array:
        """Return a copy of these rows, of shape (rows, *field shape)."""
        if self.rows is None:  # rows without bytes, or so large that Python code per row is negligible
            copy = np.empty((len(indices), *self._shape), self._dtype)
            for position, (chunk, local) in enumerate(indices.tolist()):
                copy[position] = self._chunks[chunk][local]
            return copy
        gathered = self.rows[indices].view(self._dtype)
        return gathered.reshape(len(indices), *self._shape) if self._shape else gathered


class _RaggedColumn:
    """A ragged field of all rows: a column of its entries, gathered by row offsets."""

    def __init__(self, field: Field, chunks: Sequence[Ragged]) -> None:
        self._field, self._chunks, self._entry_bytes = field, chunks, field.entry_bytes
        offset = Field(name=field.name, dtype=OFFSET.name, shape=())
        self._offsets = _Column(offset, [chunk.offsets for chunk in chunks])
        self._counts = np.array([len(chunk.values) for chunk in chunks])
        # A chunk without entries has no address. Its placeholder index is never used for an entry.
        filled = [number for number, chunk in enumerate(chunks) if len(chunk.values)]
        self._filled = np.zeros(len(chunks), np.int64)
        self._filled[filled] = np.arange(len(filled))
        self._entries = _Column(field, [chunks[number].values for number in filled]) if filled else None

    def planned(self, chunk: NDArray[np.int64], local: NDArray[np.int64]) -> _Gather:
        """Return a gather for rows `local` of the chunks `chunk`.

        Raises:
            ShardCorruptError: row offsets are outside their chunk.
        """
        starts, stops = (self._offsets.gather(self._offsets.indices(chunk, local + side)) for side in (0, 1))
        if (starts < 0).any() or (stops < starts).any() or (stops > self._counts[chunk]).any():
            raise ShardCorruptError(
                f"rows of the ragged field {self._field.name!r} end where their shard has no values: its partition "
                "must be preprocessed again"
            )
        # Entries are numbered over all planned rows, so that a batch takes a slice of arrays computed once.
        lengths = stops - starts
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        entries = self._entries
        if entries is None or entries.rows is None:
            by_entry, step = None, 1
        else:
            step = entries.step
            by_entry = entries.indices(self._filled[chunk], starts) - ends[:-1] * step

        def gather(begin: int, end: int, allocate: Allocate | None) -> Ragged:
            first, last = int(ends[begin]), int(ends[end])
            offsets = ends[begin : end + 1] - first
            if first == last or not self._entry_bytes:
                values: Array = np.empty((last - first, *self._field.entry_shape), self._field.storage)
            elif by_entry is None or last - first > _LONG_ROW * (end - begin):
                # Copying an entry takes 4 ns and an index of 8 bytes; copying a row from its chunk takes 0.5 µs.
                part = zip(*(each[begin:end].tolist() for each in (chunk, starts, stops)), strict=True)
                values = np.concatenate(
                    [self._chunks[which].values[start:stop] for which, start, stop in part]
                )
            else:
                assert entries is not None
                places = by_entry[begin:end].repeat(lengths[begin:end])
                places += np.arange(first * step, last * step, step)
                values = entries.gather(places)
            return Ragged.unchecked(values, offsets)

        return gather


class Gathering(NamedTuple):
    """A planned batch, not gathered yet.

    Attributes:
        rows: positions in stored order.
    """

    rows: NDArray[np.int64]
    plan: Sequence[_Gather]
    begin: int
    end: int

    def columns(
        self, allocate: Allocate | None = None, numbers: Iterable[int] | None = None
    ) -> list[Array | Ragged]:
        """Return copies: per field an array of shape (rows, *field shape) or a `Ragged`, of dtype `storage`.

        The caller owns them. Safe in any thread.

        Args:
            allocate: returns memory for the copy of a field with large rows. New pages and a second copy would take
                longer than the copy itself.
            numbers: numbers of the wanted fields. Default: all.
        """
        plan = self.plan if numbers is None else [self.plan[number] for number in numbers]
        return [gather(self.begin, self.end, allocate) for gather in plan]


class _File(NamedTuple):
    """The path, checksum and time of a shard when it was mapped."""

    path: Path
    written: Written
    changed_ns: int


class MappedPartition(NamedTuple):
    """A partition among mapped rows.

    Attributes:
        first: position of its first row.
        rows: number of rows.
        checksum: checksum of the rows, see `PartitionManifest.checksum`.
    """

    first: int
    rows: int
    checksum: str


class MappedRows:
    """All rows of some partitions, in stored order: by partition, shard and position.

    Immutable and safe to share between threads. Files may be deleted while it exists. Opening reads no rows,
    except of a shard that is newer than its partition's manifest: its checksum must still match.

    Attributes:
        partitions: the partitions that have rows.
    """

    def __init__(
        self,
        layout: Layout | None,
        chunks: Sequence[_Chunk],
        files: Sequence[_File] = (),
        partitions: Sequence[MappedPartition] = (),
    ) -> None:
        self.layout = layout
        self.partitions = tuple(partitions)
        self._files = files
        self._ids = [chunk.ids for chunk in chunks]
        self._edges = np.array([0, *accumulate(len(ids) for ids in self._ids)], np.int64)
        self._columns = [
            _make_column(field, [chunk.columns[position] for chunk in chunks])
            for position, field in enumerate(self.fields)
        ]

    @classmethod
    def open(cls, folders: Iterable[Path]) -> MappedRows:
        """Map the partitions in `folders`.

        Raises:
            DataError: partitions have different fields.
            ShardCorruptError: a partition is incomplete, or a shard is missing or damaged.
        """
        layout: Layout | None = None
        chunks: list[_Chunk] = []
        files: list[_File] = []
        partitions: list[MappedPartition] = []
        for folder in folders:
            manifest = _manifest(folder)
            if manifest.layout is None:
                continue
            if layout is None:
                layout = manifest.layout
            try:
                layout.check_layout(manifest.layout)
            except RowError as error:
                raise DataError(f"partition {folder} does not fit the ones before it: {error}") from error
            first = partitions[-1].first + partitions[-1].rows if partitions else 0
            if manifest.rows_out:
                partitions.append(MappedPartition(first, manifest.rows_out, manifest.checksum))
            complete_ns = _changed_ns(folder / PARTITION_FILE)
            for shard in manifest.shards:
                path = folder / shard.file
                files.append(_File(path, shard.written, _changed_ns(path)))
                if files[-1].changed_ns > complete_ns:
                    verify(path, shard.written)
                chunks.extend(_open_shard(path, shard, manifest.layout.fields))
        return cls(layout, chunks, files, partitions)

    def require_unchanged(self) -> None:
        """Raise ShardCorruptError if the bytes of a shard changed since it was mapped. A deleted file stays mapped."""
        for path, written, changed_ns in self._files:
            if _changed_ns(path) not in (0, changed_ns):
                verify(path, written)

    @property
    def num_rows(self) -> int:
        """Rows of all partitions."""
        return int(self._edges[-1])

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of every row; () without rows."""
        return () if self.layout is None else self.layout.fields

    def planned(
        self, order: NDArray[np.int64], bounds: NDArray[np.int64], share: tuple[int, int] = (0, 1)
    ) -> Iterator[Gathering]:
        """Yield the rows of `order` batch by batch, to be gathered.

        Args:
            order: positions in stored order, at least one.
            bounds: batch `t` has the rows of `order` from `bounds[t]` to `bounds[t + 1]`.
            share: (index, number of parts): only this part of each batch, as `share_of` divides it. An empty part
                borrows one row.
        """
        for number in range(0, len(bounds) - 1, _PLANNED_BATCHES):
            edges = bounds[number : number + _PLANNED_BATCHES + 1].tolist()
            first = min(edges[0], len(order) - 1)
            rows = order[first : max(edges[-1], first + 1)]
            chunk = self._edges.searchsorted(rows, side="right") - 1
            local = rows - self._edges[chunk]
            plan = [column.planned(chunk, local) for column in self._columns]
            for start, stop in pairwise(edges):
                begin, end = (start - first + edge for edge in share_of(stop - start, *share))
                if begin == end:  # borrowed
                    begin = min(begin, len(rows) - 1)
                    end = begin + 1
                yield Gathering(rows[begin:end], plan, begin, end)

    def ids(self, rows: NDArray[np.int64] | None = None) -> list[RowId]:
        """Return the ids of `rows` (positions in stored order), or of all rows."""
        if not self._ids:
            return []
        ids = pa.chunked_array(self._ids)
        selected: list[RowId] = (ids if rows is None else ids.take(pa.array(rows))).to_pylist()
        return selected


def share_of(rows: int, index: int, of: int) -> tuple[int, int]:
    """Return the range of part `index` when rows are divided into `of` consecutive, nearly equal parts.

    An empty part begins at a row.
    """
    return rows * index // of, rows * (index + 1) // of


def _make_column(field: Field, chunks: Sequence[Any]) -> _Column | _RaggedColumn:
    return _RaggedColumn(field, chunks) if field.is_ragged else _Column(field, chunks)


def _manifest(folder: Path) -> PartitionManifest:
    """Read the manifest of a partition that was complete when the task was assigned."""
    try:
        return read_manifest(folder)
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise ShardCorruptError.at(str(error), folder / PARTITION_FILE) from error


def _changed_ns(path: Path) -> int:
    """Time of the last change; 0 if the file is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _open_shard(path: Path, shard: ShardEntry, fields: Sequence[Field]) -> list[_Chunk]:
    """Map the chunks of one shard, without reading its columns."""
    if shard.rows_out == 0:
        return []
    try:
        with (
            volume_errors_named(path.parent, also=NO_MEMORY),
            pa.memory_map(str(path)) as file,
        ):  # batches stay mapped after the file is closed
            if file.size() != shard.written.num_bytes:
                raise ShardCorruptError.at(
                    f"{path} has {file.size()} bytes, but {shard.written.num_bytes} were written: its partition must "
                    "be preprocessed again",
                    path,
                )
            reader = pa.ipc.open_file(file)
            chunks = [_chunk(reader.get_batch(i), fields) for i in range(reader.num_record_batches)]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise ShardCorruptError.at(
            f"{path} cannot be read ({error}): its partition must be preprocessed again", path
        ) from error
    if sum(len(chunk.ids) for chunk in chunks) != shard.rows_out:
        raise ShardCorruptError.at(f"{path} does not have the {shard.rows_out} rows of its manifest", path)
    return chunks


def _chunk(batch: pa.RecordBatch, fields: Sequence[Field]) -> _Chunk:
    columns = [_column(batch.column(field.name), field) for field in fields]
    return _Chunk(columns=columns, ids=batch.column("id"))


def _column(column: pa.Array, field: Field) -> Array | Ragged:
    if column.type != column_type(field):
        raise KeyError(f"column {field.name!r} is {column.type}, expected {field}")
    # Use the full buffers: batches read from a file are not slices.
    if not field.is_ragged:
        return _entries(column, field)
    offsets = np.frombuffer(column.buffers()[1], OFFSET, len(column) + 1)
    return Ragged.unchecked(_entries(column.values, field), offsets)


def _entries(column: pa.Array, field: Field) -> Array:
    # `to_numpy` would make Arrow import pandas.
    count = len(column) * math.prod(field.entry_shape)
    if not count:
        return np.empty((len(column), *field.entry_shape), field.storage)
    flat = column.storage.values if field.entry_shape or not field.is_ragged else column
    values: NDArray[Any] = np.frombuffer(flat.buffers()[1], field.storage, count)
    return values.reshape(len(column), *field.entry_shape)
