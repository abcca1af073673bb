"""Writer of one shard: an Arrow IPC file with columns of fixed-shape tensors, and its manifest.

ETL tasks add rows (`cerebro.worker.preprocessing.shard`); `mapped` reads the file. The file is uncompressed, so that it
can be memory-mapped. It has one record batch, or batches of about 64 MB if it is larger, so that memory stays bounded.
Ids keep their type from the metadata. A ragged field is a column of lists of numbers or of fixed-shape tensors. Bools
are bytes, marked in the column's metadata.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cerebro.data.fields import OFFSET, Field, Layout
from cerebro.data.files.durable import DurableFile
from cerebro.data.manifests import SCHEMA_VERSION, FailedRow, PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import write_manifest, write_shard_manifest
from cerebro.data.statistics.data import ShardObserver
from cerebro.data.trees import Array, RowId, first_leaf, flatten, flatten_batch
from cerebro.ragged_rows import Ragged

BATCH_BYTES = 64 << 20
"""Bytes of rows that are collected before a record batch is written."""

_FIRST_ENTRIES = 1024
"""Initial capacity of a ragged column; it grows as needed."""


def write_rows(folder: Path, rows: Sequence[tuple[object, object]], source: Source) -> None:
    """Write a complete partition of one shard from (input, output) rows, with ids from 0.

    Raises:
        RowError: as `ShardWriter.add`.
    """
    with ShardWriter(folder, 0, start=0, stop=len(rows), source=source, id_type=pa.int64()) as writer:
        for number, (inputs, outputs) in enumerate(rows):
            writer.add(number, inputs, outputs)
        shard = writer.close()
    write_manifest(folder, PartitionManifest.of(source, [shard]))


def write_batches(folder: Path, batches: Iterable[object], num_rows: int, source: Source) -> None:
    """Write a complete partition of one shard from input trees of many rows each, with ids from 0.

    Args:
        num_rows: number of rows in all batches.

    Raises:
        RowError: as `ShardWriter.add_batch`.
        StorageFullError: the volume is full.
    """
    with ShardWriter(folder, 0, start=0, stop=num_rows, source=source, id_type=pa.int64()) as writer:
        first = 0
        for batch in batches:
            rows = len(first_leaf(batch))
            writer.add_batch(range(first, first + rows), batch, None)
            first += rows
        shard = writer.close()
    write_manifest(folder, PartitionManifest.of(source, [shard]))


class ShardWriter:
    """Writes the shard of rows `start` to `stop` (exclusive) of a partition. Owned by one thread.

    Pass each row of the range once, to `add` or `fail`, then call `close`. As a context manager, it removes a shard
    that was not closed.

    Args:
        observer: collects statistics of the rows for the manifest. Default: none.
    """

    def __init__(
        self,
        folder: Path,
        index: int,
        *,
        start: int,
        stop: int,
        source: Source,
        id_type: pa.DataType,
        observer: ShardObserver | None = None,
    ) -> None:
        self._folder = folder
        self._index = index
        self._start = start
        self._stop = stop
        self._source = source
        self._id_type = id_type
        self._name = f"shard-{index:05d}-{uuid.uuid4().hex[:8]}.arrow"
        self._file = DurableFile(folder / self._name)
        self._observer = observer
        self._rows: _Rows | None = None
        self._failed: list[FailedRow] = []

    def add(self, row_id: RowId, input_tree: object, output_tree: object) -> None:
        """Append a copy of a row.

        Raises:
            RowError: the row cannot be stored, or differs from the first row in fields, shapes or dtypes.
            StorageFullError: the volume is full.
        """
        leaves = None if self._rows is None else self._rows.layout.leaves(input_tree, output_tree)
        if leaves is None:
            row = flatten(row_id, input_tree, output_tree)
            if self._rows is None:
                self._rows = self._begin(Layout.of(row))
            self._rows.layout.check(row)
            leaves = [row.values[field.name] for field in self._rows.layout.fields]
        assert self._rows is not None
        self._rows.append(row_id, leaves)

    def add_batch(self, ids: Sequence[RowId], input_tree: object, output_tree: object) -> None:
        """Append copies of rows, at least one; leaves of the trees have one entry per row.

        Raises:
            RowError: as `add`, or a leaf has another number of entries.
            StorageFullError: the volume is full.
        """
        leaves, row = flatten_batch(ids, input_tree, output_tree)
        if self._rows is None:
            self._rows = self._begin(Layout.of(row))
        self._rows.layout.check(row)
        self._rows.extend(ids, [leaves[field.name] for field in self._rows.layout.fields])

    def _begin(self, layout: Layout) -> _Rows:
        return _Rows(layout, self._stop - self._start, self._file, self._id_type, self._observer)

    def fail(self, row: FailedRow) -> None:
        """Record a failed row of the range."""
        self._failed.append(row)

    def close(self) -> ShardManifest:
        """Complete the shard durably: write the rows, then the manifest.

        Raises:
            DataError: rows of the range are missing.
            StorageFullError: the volume is full.
        """
        if self._rows is None:
            schema = pa.schema([pa.field("id", self._id_type)])
            pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema).close()
        else:
            self._rows.close()
        shard = ShardManifest(
            index=self._index,
            file=self._name,
            start=self._start,
            stop=self._stop,
            source=self._source,
            rows_out=0 if self._rows is None else self._rows.num_rows,
            failed=tuple(self._failed),
            written=self._file.commit(sync_rename=False),  # the manifest's commit syncs both renames
            layout=None if self._rows is None else self._rows.layout,
            statistics=self._observer.result() if self._observer else None,
        )
        write_shard_manifest(self._folder, shard)
        return shard

    def discard(self) -> None:
        """Remove a shard that was not closed."""
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.discard()


class _Rows:
    """The columns of the record batch being filled.

    The rows alone determine the batches, not the number of rows per call.
    """

    def __init__(
        self,
        layout: Layout,
        num_rows: int,
        file: DurableFile,
        id_type: pa.DataType,
        observer: ShardObserver | None,
    ) -> None:
        self.layout = layout
        self._observer = observer
        self.num_rows = 0
        self._schema = schema_of(layout, id_type)
        self._writer = pa.ipc.new_file(pa.PythonFile(file, mode="w"), self._schema)
        self._capacity = max(1, min(num_rows, BATCH_BYTES // max(1, layout.row_bytes)))
        self._fixed: list[tuple[int, Array]] = []
        self._ragged: list[tuple[int, _RaggedColumn]] = []
        for position, field in enumerate(layout.fields):
            if field.is_ragged:
                self._ragged.append((position, _RaggedColumn(field, self._capacity)))
            else:
                column = np.empty((self._capacity, *field.entry_shape), field.storage)
                self._fixed.append((position, column))
        self._ids: list[RowId] = []

    def append(self, row_id: RowId, leaves: Sequence[Any]) -> None:
        """Append a copy of one row with the layout; one leaf per field."""
        if len(self._ids) == self._capacity or (self._ragged and not self._has_room(leaves)):
            self._flush()
        at = len(self._ids)
        for position, column in self._fixed:
            column[at] = leaves[position]
        for position, entries in self._ragged:
            entries.append(at, leaves[position])
        self._ids.append(row_id)
        self.num_rows += 1

    def extend(self, ids: Sequence[RowId], leaves: Sequence[Array | Ragged]) -> None:
        """Append copies of rows with the layout; one leaf per field, rows on the first axis."""
        ends = self._bytes_up_to(leaves) if self._ragged else None
        done = 0
        while done < len(ids):
            if len(self._ids) == self._capacity:
                self._flush()
            at = len(self._ids)
            count = min(len(ids) - done, self._capacity - at)
            if ends is not None:
                free_bytes = BATCH_BYTES - self._filled_bytes
                count = min(count, int(ends.searchsorted(ends[done] + free_bytes, side="right")) - 1 - done)
                if count <= 0 and at:
                    self._flush()
                    continue
                count = max(count, 1)  # a single row may be larger than a batch
            for position, column in self._fixed:
                column[at : at + count] = leaves[position][done : done + count]
            for position, entries in self._ragged:
                rows: Ragged = leaves[position][done : done + count]  # type: ignore[assignment]  # the field is ragged
                entries.extend(at, rows)
            self._ids.extend(ids[done : done + count])
            done += count
        self.num_rows += len(ids)

    def close(self) -> None:
        """Write the remaining rows and the file's footer."""
        self._flush()
        self._writer.close()

    @property
    def _filled_bytes(self) -> int:
        """Bytes of the rows in the batch."""
        entries = sum(column.num_bytes for _, column in self._ragged)
        return len(self._ids) * self.layout.row_bytes + entries

    def _has_room(self, leaves: Sequence[Any]) -> bool:
        """Return True if a row with ragged fields fits, or the batch is empty."""
        if not self._ids:
            return True
        more = sum(len(leaves[position]) * column.entry_bytes for position, column in self._ragged)
        return self._filled_bytes + self.layout.row_bytes + more <= BATCH_BYTES

    def _bytes_up_to(self, leaves: Sequence[Array | Ragged]) -> NDArray[np.int64]:
        """Return the bytes of the first n rows, for each n from 0."""
        num_bytes = np.int64(0)
        for position, column in self._ragged:
            num_bytes = num_bytes + leaves[position].offsets * column.entry_bytes  # type: ignore[union-attr]
        return num_bytes + np.arange(len(num_bytes)) * self.layout.row_bytes  # type: ignore[arg-type]

    def _flush(self) -> None:
        count = len(self._ids)
        if count == 0:
            return
        if self._observer is not None:
            observed: dict[int, Any] = {position: column[:count] for position, column in self._fixed}
            observed |= {position: column.batch(count) for position, column in self._ragged}
            self._observer.observe(self.layout, [observed[at] for at in range(len(observed))])
        arrays = {position: _tensors(column[:count]) for position, column in self._fixed}
        arrays |= {position: column.take(count) for position, column in self._ragged}
        columns = [pa.array(self._ids, type=self._id_type), *(arrays[at] for at in range(len(arrays)))]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._ids.clear()

    @property
    def _id_type(self) -> pa.DataType:
        return self._schema.field("id").type


class _RaggedColumn:
    """Entries of a ragged field, and the offset of each row's end."""

    def __init__(self, field: Field, capacity: int) -> None:
        self.entry_bytes = field.entry_bytes
        self._offsets = np.zeros(capacity + 1, OFFSET)
        self._entries = np.empty((_FIRST_ENTRIES, *field.entry_shape), field.storage)
        self._count = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored entries."""
        return self._count * self.entry_bytes

    def append(self, at: int, row: Any) -> None:
        self._add(row)
        self._offsets[at + 1] = self._count

    def extend(self, at: int, rows: Ragged) -> None:
        """Append the entries of rows, starting with row `at` of the batch."""
        self._offsets[at + 1 : at + 1 + len(rows)] = rows.offsets[1:] + self._count
        self._add(rows.values)

    def batch(self, rows: int) -> tuple[NDArray[np.int64], Array]:
        """Return the offsets of `rows` rows, and their entries."""
        return self._offsets[: rows + 1], self._entries[: self._count]

    def take(self, rows: int) -> pa.Array:
        """Return the column of `rows` rows over this memory, and clear it for the next rows."""
        entries, self._count = self._entries[: self._count], 0
        values = _tensors(entries) if entries.ndim > 1 else _numbers(entries)
        offsets = pa.py_buffer(self._offsets[: rows + 1])
        return pa.Array.from_buffers(_list_of(values.type), rows, [None, offsets], children=[values])

    def _add(self, entries: Any) -> None:
        begin, self._count = self._count, self._count + len(entries)
        if self._count > len(self._entries):
            larger = np.empty((max(self._count, 2 * begin), *self._entries.shape[1:]), self._entries.dtype)
            larger[:begin] = self._entries[:begin]
            self._entries = larger
        self._entries[begin : self._count] = entries


def schema_of(layout: Layout, id_type: pa.DataType) -> pa.Schema:
    """Return the Arrow schema of a shard: `id`, then one column per field."""
    columns = [pa.field("id", id_type, nullable=False)]
    for field in layout.fields:
        columns.append(
            pa.field(field.name, column_type(field), nullable=False, metadata={"cerebro.dtype": field.dtype})
        )
    description = {"schema_version": SCHEMA_VERSION, "structure": dict(layout.structure)}
    return pa.schema(columns, metadata={"cerebro": json.dumps(description)})


def column_type(field: Field) -> pa.DataType:
    """Return the Arrow type of a field's column.

    It is a fixed-shape tensor; for a ragged field, a list of numbers or of fixed-shape tensors.
    """
    kind = pa.from_numpy_dtype(field.storage)
    if field.is_ragged and not field.entry_shape:
        return _list_of(kind)
    tensors = pa.fixed_shape_tensor(kind, list(field.entry_shape))
    return _list_of(tensors) if field.is_ragged else tensors


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.large_list(pa.field("item", kind, nullable=False))


def _tensors(column: Array) -> pa.Array:
    """Return `column` (rows first, contiguous) as an Arrow array over the same memory."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(column.dtype), list(column.shape[1:]))
    values = _numbers(column.reshape(-1))
    storage = pa.Array.from_buffers(kind.storage_type, len(column), [None], children=[values])
    return pa.ExtensionArray.from_storage(kind, storage)


def _numbers(flat: Array) -> pa.Array:
    kind = pa.from_numpy_dtype(flat.dtype)
    return pa.Array.from_buffers(kind, flat.size, [None, pa.py_buffer(flat)])
