"""The rows of complete partitions as memory-mapped columns, and the gather that makes batches of them.

A batch is one copy per field, straight from the page cache, however many shards its rows lie in: no Python
per row, nor per shard (a copy per shard made batches from eight shards a fifth slower, from a hundred several
times). Torch is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cerebro.data.fields import Field, Layout
from cerebro.data.manifests import ShardEntry
from cerebro.data.partitions import read_manifest
from cerebro.data.shards import tensor_type
from cerebro.data.trees import Array, RowId
from cerebro.errors import DataError, RowError, ShardCorruptError

_PLANNED = 64  # batches whose rows are looked up at a time
_LARGEST = 1 << 62  # bytes that NumPy can address in one array, with a margin


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """One record batch: a column of shape (rows, *field shape) per field, read-only, over the mapped file."""

    columns: Sequence[Array]
    ids: pa.Array


class _Column:
    """One field of all rows as a single array, although its chunks lie in different files.

    The array begins at the chunk that is lowest in memory and reaches to the end of the highest. Its elements
    are whole rows that overlap: they begin every ``unit`` bytes, the greatest step that meets the first byte
    of each row of each chunk. So a row of any chunk has an index, and NumPy's indexing gathers rows of all
    chunks at once. What lies between the chunks is never touched, as no row has an index there.
    """

    def __init__(self, field: Field, chunks: Sequence[Array]) -> None:
        self._shape, self._dtype = field.shape, field.storage
        self._chunks = chunks  # the mappings live as long as these
        size = field.num_bytes
        starts = np.array([chunk.__array_interface__["data"][0] for chunk in chunks], np.int64)
        lowest = int(starts.argmin())
        starts -= starts[lowest]
        unit = int(np.gcd.reduce(starts, initial=size)) or 1
        self._starts, self._step = starts // unit, size // unit
        last = self._starts + self._step * (np.array([len(chunk) for chunk in chunks]) - 1)
        length = int(last.max()) + 1
        self._rows: Array | None = None
        if 0 < size * length < _LARGEST:
            first = chunks[lowest].reshape(-1).view(f"V{size}")
            self._rows = as_strided(first, shape=(length,), strides=(unit,), writeable=False)

    def indices(self, chunk: NDArray[np.int64], local: NDArray[np.int64]) -> NDArray[np.int64]:
        """What `gather` takes for the rows at positions ``local`` of the chunks ``chunk``."""
        if self._rows is None:
            return np.stack([chunk, local], axis=1)
        return self._starts[chunk] + local * self._step

    def gather(self, indices: NDArray[np.int64]) -> Array:
        """A copy of these rows: shape (rows, *field shape)."""
        if self._rows is None:  # rows without a byte, or so large that a step per row does not count
            copy = np.empty((len(indices), *self._shape), self._dtype)
            for position, (chunk, local) in enumerate(indices.tolist()):
                copy[position] = self._chunks[chunk][local]
            return copy
        return self._rows[indices].view(self._dtype).reshape(len(indices), *self._shape)


class MappedRows:
    """All rows of some partitions, in stored order: by partition, shard and position.

    Immutable and safe to share between threads. The files may be deleted while it lives. Opening reads no
    rows.
    """

    def __init__(self, layout: Layout | None, chunks: Sequence[_Chunk]) -> None:
        self.layout = layout
        self._ids = [chunk.ids for chunk in chunks]
        self._edges = np.array([0, *accumulate(len(ids) for ids in self._ids)], np.int64)
        self._columns = [
            _Column(field, [chunk.columns[position] for chunk in chunks])
            for position, field in enumerate(self.fields)
        ]

    @classmethod
    def open(cls, folders: Iterable[Path]) -> MappedRows:
        """Map the partitions in ``folders``.

        Raises:
            DataError: a partition is not complete, or the partitions do not have the same fields.
            ShardCorruptError: a shard is missing or is not what its manifest says.
        """
        layout: Layout | None = None
        chunks: list[_Chunk] = []
        for folder in folders:
            manifest = read_manifest(folder)
            if manifest.layout is None:
                continue
            if layout is None:
                layout = manifest.layout
            try:
                layout.check_layout(manifest.layout)
            except RowError as error:
                raise DataError(f"partition {folder} does not fit the ones before it: {error}") from error
            for shard in manifest.shards:
                chunks.extend(_open_shard(folder / shard.file, shard, manifest.layout.fields))
        return cls(layout, chunks)

    @property
    def num_rows(self) -> int:
        """Rows in all partitions together."""
        return int(self._edges[-1])

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of every row; none where there are no rows."""
        return () if self.layout is None else self.layout.fields

    def batches(
        self, order: NDArray[np.int64], bounds: NDArray[np.int64], share: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[NDArray[np.int64], list[Array]]]:
        """Copies of the rows of ``order`` (positions in stored order, at least one), batch by batch.

        Yields their positions, and per field an array of shape (rows, *field shape) and its `storage` dtype,
        which is the caller's.

        Args:
            bounds: batch ``t`` has the rows of ``order`` from ``bounds[t]`` to ``bounds[t + 1]``.
            share: (which, of so many): only these rows of each batch, as `share_of` has it; one row where that is none.
        """
        for number in range(0, len(bounds) - 1, _PLANNED):
            edges = bounds[number : number + _PLANNED + 1].tolist()
            first = min(edges[0], len(order) - 1)
            rows = order[first : max(edges[-1], first + 1)]
            chunk = self._edges.searchsorted(rows, side="right") - 1
            local = rows - self._edges[chunk]
            plan = [(column.gather, column.indices(chunk, local)) for column in self._columns]
            for start, stop in pairwise(edges):
                begin, end = share_of(stop - start, *share)
                lent = min(start + begin - first, len(rows) - 1)
                part = (
                    slice(start + begin - first, start + end - first)
                    if end > begin
                    else slice(lent, lent + 1)
                )
                yield rows[part], [gather(indices[part]) for gather, indices in plan]

    def ids(self, rows: NDArray[np.int64] | None = None) -> list[RowId]:
        """Ids of ``rows`` (positions in stored order, in any order), or of all rows."""
        if not self._ids:
            return []
        ids = pa.chunked_array(self._ids)
        found: list[RowId] = (ids if rows is None else ids.take(pa.array(rows))).to_pylist()
        return found


def share_of(rows: int, index: int, of: int) -> tuple[int, int]:
    """Where the ``index``-th of ``of`` parts of so many rows begins and ends: in order, with sizes that differ by one
    at most. Empty parts begin at a row."""
    return rows * index // of, rows * (index + 1) // of


def _open_shard(path: Path, shard: ShardEntry, fields: Sequence[Field]) -> list[_Chunk]:
    """The chunks of one shard. No page of its columns is read, so a checksum is not looked at here."""
    if shard.rows_out == 0:
        return []
    try:
        with pa.memory_map(str(path)) as file:  # what was read stays mapped after the file is closed
            if file.size() != shard.written.num_bytes:
                raise ShardCorruptError(
                    f"{path} has {file.size()} bytes, but {shard.written.num_bytes} were written: its partition must "
                    "be preprocessed again"
                )
            reader = pa.ipc.open_file(file)
            chunks = [_chunk(reader.get_batch(i), fields) for i in range(reader.num_record_batches)]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise ShardCorruptError(
            f"{path} cannot be read ({error}): its partition must be preprocessed again"
        ) from error
    if sum(len(chunk.ids) for chunk in chunks) != shard.rows_out:
        raise ShardCorruptError(f"{path} does not have the {shard.rows_out} rows of its manifest")
    return chunks


def _chunk(batch: pa.RecordBatch, fields: Sequence[Field]) -> _Chunk:
    columns = [_column(batch.column(field.name), field) for field in fields]
    return _Chunk(columns=columns, ids=batch.column("id"))


def _column(column: pa.ExtensionArray, field: Field) -> Array:
    if column.type != tensor_type(field):
        raise KeyError(f"column {field.name!r} is {column.type}, expected {field}")
    # The values as a whole, without offset: batches as read from a file are no slices. Not by
    # `to_numpy`, for which Arrow imports pandas.
    count = len(column) * math.prod(field.shape)
    if not count:
        return np.empty((len(column), *field.shape), field.storage)
    values: NDArray[Any] = np.frombuffer(column.storage.values.buffers()[1], field.storage, count)
    return values.reshape(len(column), *field.shape)
