"""Writing one shard: rows in, an Arrow IPC file with fixed-shape tensor columns out.

The file is written as it will be read: uncompressed, so that it can be memory-mapped, in one record batch, or
in batches of about 64 MB where the shard is larger, so that memory stays bounded. Rows keep their id, of the
type it has in the metadata. Bools are bytes, tagged in the column's metadata.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from cerebro.data.durable import DurableFile
from cerebro.data.fields import Field, Layout
from cerebro.data.manifests import SCHEMA_VERSION, FailedRow, PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import write_manifest, write_shard_manifest
from cerebro.data.trees import Array, RowId, flatten, flatten_batch

BATCH_BYTES = 64 << 20
"""Rows are kept in memory up to this size, then written as one record batch."""


def write_rows(folder: Path, rows: Sequence[tuple[object, object]], source: Source) -> None:
    """A complete partition of one shard from what a row function returned: (input, output) each. Ids count from 0.

    Raises:
        RowError: as `ShardWriter.add`.
    """
    with ShardWriter(folder, 0, start=0, stop=len(rows), source=source, id_type=pa.int64()) as writer:
        for number, (inputs, outputs) in enumerate(rows):
            writer.add(number, inputs, outputs)
        shard = writer.close()
    write_manifest(folder, PartitionManifest.of(source, [shard]))


class ShardWriter:
    """Writes the shard of rows ``start`` to ``stop`` (exclusive) of a partition. Owned by one thread.

    Each row of the range must be given once, to `add` or to `fail`; `close` then completes the shard. As a
    context manager, a shard that was not closed leaves no trace.
    """

    def __init__(
        self, folder: Path, index: int, *, start: int, stop: int, source: Source, id_type: pa.DataType
    ) -> None:
        self._folder = folder
        self._index = index
        self._start = start
        self._stop = stop
        self._source = source
        self._id_type = id_type
        self._name = f"shard-{index:05d}-{uuid.uuid4().hex[:8]}.arrow"
        self._file = DurableFile(folder / self._name)
        self._rows: _Rows | None = None
        self._failed: list[FailedRow] = []

    def add(self, row_id: RowId, input_tree: object, output_tree: object) -> None:
        """Append a row; its values are copied.

        Raises:
            RowError: it cannot be stored, or differs from the shard's first row in fields, shapes or dtypes.
            StorageFullError: the volume is full.
        """
        leaves = None if self._rows is None else self._rows.layout.leaves(input_tree, output_tree)
        if leaves is None:
            row = flatten(row_id, input_tree, output_tree)
            if self._rows is None:
                self._rows = _Rows(Layout.of(row), self._stop - self._start, self._file, self._id_type)
            self._rows.layout.check(row)
            leaves = [row.values[field.name] for field in self._rows.layout.fields]
        assert self._rows is not None
        self._rows.append(row_id, leaves)

    def add_batch(self, ids: Sequence[RowId], input_tree: object, output_tree: object) -> None:
        """Append rows, at least one: leaves of the trees have an entry for each of them; values are copied.

        Raises:
            RowError: as `add`; or a leaf has more or fewer entries.
            StorageFullError: the volume is full.
        """
        leaves, row = flatten_batch(ids, input_tree, output_tree)
        if self._rows is None:
            self._rows = _Rows(Layout.of(row), self._stop - self._start, self._file, self._id_type)
        self._rows.layout.check(row)
        self._rows.extend(ids, [leaves[field.name] for field in self._rows.layout.fields])

    def fail(self, row: FailedRow) -> None:
        """Record a row of the range that is not in the file."""
        self._failed.append(row)

    def close(self) -> ShardManifest:
        """Complete the shard durably: first the rows, then the manifest that says so.

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
            written=self._file.commit(sync_rename=False),  # the manifest's commit does it for both
            layout=None if self._rows is None else self._rows.layout,
        )
        write_shard_manifest(self._folder, shard)
        return shard

    def discard(self) -> None:
        """Leave no trace of a shard that was not closed."""
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.discard()


class _Rows:
    """The columns of the record batch being filled."""

    def __init__(self, layout: Layout, num_rows: int, file: DurableFile, id_type: pa.DataType) -> None:
        self.layout = layout
        self.num_rows = 0
        self._schema = schema_of(layout, id_type)
        self._writer = pa.ipc.new_file(pa.PythonFile(file, mode="w"), self._schema)
        self._capacity = max(1, min(num_rows, BATCH_BYTES // max(1, layout.row_bytes)))
        self._columns = [np.empty((self._capacity, *field.shape), field.storage) for field in layout.fields]
        self._ids: list[RowId] = []

    def append(self, row_id: RowId, leaves: Sequence[Any]) -> None:
        """Copy one row, which must have the layout, behind the others; one leaf per field."""
        if len(self._ids) == self._capacity:
            self._flush()
        at = len(self._ids)
        for column, leaf in zip(self._columns, leaves, strict=True):
            column[at] = leaf
        self._ids.append(row_id)
        self.num_rows += 1

    def extend(self, ids: Sequence[RowId], leaves: Sequence[Array]) -> None:
        """Copy rows, which must have the layout, behind the others; one leaf per field, rows first."""
        done = 0
        while done < len(ids):
            if len(self._ids) == self._capacity:
                self._flush()
            at = len(self._ids)
            count = min(len(ids) - done, self._capacity - at)
            for column, leaf in zip(self._columns, leaves, strict=True):
                column[at : at + count] = leaf[done : done + count]
            self._ids.extend(ids[done : done + count])
            done += count
        self.num_rows += len(ids)

    def close(self) -> None:
        """Write what is left and the file's footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        count = len(self._ids)
        if count == 0:
            return
        arrays = [pa.array(self._ids, type=self._id_type)]
        for field, column in zip(self.layout.fields, self._columns, strict=True):
            arrays.append(_tensor_array(column[:count], field))
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._ids.clear()

    @property
    def _id_type(self) -> pa.DataType:
        return self._schema.field("id").type


def schema_of(layout: Layout, id_type: pa.DataType) -> pa.Schema:
    """The Arrow schema of a shard: ``id``, then one fixed-shape tensor column per field."""
    columns = [pa.field("id", id_type, nullable=False)]
    for field in layout.fields:
        columns.append(
            pa.field(field.name, tensor_type(field), nullable=False, metadata={"cerebro.dtype": field.dtype})
        )
    description = {"schema_version": SCHEMA_VERSION, "structure": dict(layout.structure)}
    return pa.schema(columns, metadata={"cerebro": json.dumps(description)})


def tensor_type(field: Field) -> pa.DataType:
    """The Arrow type of a field's column."""
    return pa.fixed_shape_tensor(pa.from_numpy_dtype(field.storage), list(field.shape))


def _tensor_array(column: Array, field: Field) -> pa.Array:
    """``column`` (rows first, contiguous) as an Arrow array over the same memory."""
    kind = tensor_type(field)
    flat = column.reshape(-1)
    values = pa.Array.from_buffers(kind.value_type, flat.size, [None, pa.py_buffer(flat)])
    storage = pa.Array.from_buffers(kind.storage_type, len(column), [None], children=[values])
    return pa.ExtensionArray.from_storage(kind, storage)
