"""The rows of complete partitions as memory-mapped NumPy columns, and the gather that makes batches of them.

A gather is one copy (`np.take`) per chunk (a record batch of a shard) and field, straight from the page cache
into the batch: no Python per row. Torch is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cerebro.data.fields import Array, Field, Layout, RowId
from cerebro.data.manifests import ShardEntry
from cerebro.data.partitions import read_manifest
from cerebro.data.shards import tensor_type
from cerebro.errors import DataError, RowError, ShardCorruptError

WHOLE_BYTES = 4 << 20
"""Columns up to this size (labels, say) are copied into memory when a partition is opened."""

_PLANNED = 64  # batches planned at a time: one sort and one search for all of them


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """One record batch: a column of shape (rows, *field shape) per field, read-only, over the mapped file."""

    columns: Sequence[Array]
    ids: pa.Array


class Gather(NamedTuple):
    """Which rows make a batch, worked out ahead.

    Attributes:
        rows: positions in stored order, ascending.
        local: the same, counted from the start of each row's chunk.
        bounds: per chunk the first of its rows in the batch, and the end.
    """

    rows: NDArray[np.int64]
    local: NDArray[np.int64]
    bounds: list[int]


class MappedRows:
    """All rows of some partitions, in stored order: by partition, shard and position.

    Immutable and safe to share between threads. The files may be deleted while it lives. Opening reads no
    rows but the columns that are small in all: kept in one piece, they take one copy per batch and not one
    per chunk.
    """

    def __init__(self, layout: Layout | None, chunks: Sequence[_Chunk]) -> None:
        self.layout = layout
        self._ids = [chunk.ids for chunk in chunks]
        edges = [0, *accumulate(len(ids) for ids in self._ids)]
        self._edges = np.array(edges, np.int64)
        self._room = [(field.shape, field.storage) for field in self.fields]
        self._whole: list[tuple[int, Array]] = []  # position of the field, column of all rows
        self._mapped: list[tuple[int, list[Array]]] = []  # position of the field, column of each chunk
        for position, field in enumerate(self.fields):
            columns = [chunk.columns[position] for chunk in chunks]
            if field.num_bytes * edges[-1] <= WHOLE_BYTES:
                self._whole.append((position, np.concatenate(columns)))
            else:
                self._mapped.append((position, columns))

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

    def planned(self, order: NDArray[np.int64], batch_size: int) -> Iterator[Gather]:
        """The gathers of the rows in ``order`` (positions in stored order), ``batch_size`` at a time.

        Within a batch, rows are sorted by where they lie.
        """
        step = batch_size * _PLANNED
        for first in range(0, len(order), step):
            yield from self._planned(order[first : first + step], batch_size)

    def _planned(self, order: NDArray[np.int64], batch_size: int) -> Iterator[Gather]:
        batch = np.arange(len(order)) // batch_size
        base = batch * self.num_rows  # makes the rows of a batch greater than all of the batches before it
        keys = np.sort(order + base)
        rows = keys - base
        edges = self._edges + np.arange(batch[-1] + 1)[:, np.newaxis] * self.num_rows
        bounds = keys.searchsorted(edges)  # (batches, chunks + 1): where each chunk's rows begin and end
        local = rows - np.broadcast_to(self._edges[:-1], bounds[:, 1:].shape).repeat(np.diff(bounds).ravel())
        for start, of_batch in zip(range(0, len(order), batch_size), bounds, strict=True):
            stop = start + batch_size
            yield Gather(rows[start:stop], local[start:stop], (of_batch - start).tolist())

    def empty(self, num_rows: int) -> list[Array]:
        """Room for a batch: per field an array of shape (num_rows, *field shape) and its `storage` dtype."""
        return [np.empty((num_rows, *shape), dtype) for shape, dtype in self._room]

    def gather(self, gather: Gather, out: Sequence[Array]) -> None:
        """Copy a batch to ``out``: one contiguous array per field, as `empty` makes them."""
        # "clip" because bounds hold by construction: the default would copy by way of a buffer.
        for position, column in self._whole:
            column.take(gather.rows, 0, out[position], "clip")
        # After each copy the interpreter's own memory is cold: few Python steps per chunk and batch.
        local, bounds = gather.local, gather.bounds
        for position, columns in self._mapped:
            batch = out[position]
            for column, start, stop in zip(columns, bounds, bounds[1:], strict=False):
                if start != stop:
                    column.take(local[start:stop], 0, batch[start:stop], "clip")

    def ids(self, rows: NDArray[np.int64] | None = None) -> list[RowId]:
        """Ids of ``rows`` (positions in stored order, in any order), or of all rows."""
        if not self._ids:
            return []
        ids = pa.chunked_array(self._ids)
        found: list[RowId] = (ids if rows is None else ids.take(pa.array(rows))).to_pylist()
        return found


def _open_shard(path: Path, shard: ShardEntry, fields: Sequence[Field]) -> list[_Chunk]:
    """The chunks of one shard. No page of its columns is read, so a checksum is not looked at here."""
    if shard.rows_out == 0:
        return []
    try:
        with pa.memory_map(str(path)) as file:  # what was read stays mapped after the file is closed
            if file.size() != shard.written.num_bytes:
                raise ShardCorruptError(
                    f"{path} has {file.size()} bytes, written were {shard.written.num_bytes}"
                )
            reader = pa.ipc.open_file(file)
            chunks = [_chunk(reader.get_batch(i), fields) for i in range(reader.num_record_batches)]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ShardCorruptError(
            f"{path} cannot be read ({error}); its partition must be preprocessed again"
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
    # The values as a whole, without offset: batches as read from a file are no slices.
    values: NDArray[Any] = column.storage.values.to_numpy(zero_copy_only=True)
    return values.reshape(len(column), *field.shape)
