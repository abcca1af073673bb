"""Single rows by id, from memory-mapped files of partitioned metadata and of shards.

The web page's child process looks up the rows that it shows. It opens the files itself, because user code can write to
the volume. The module decodes no objects.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute

from cerebro.data.fields import Field
from cerebro.data.manifests import SCHEMA_VERSION, PartitionManifest
from cerebro.data.partitions import PARTITION_FILE
from cerebro.data.trees import Array, RowId
from cerebro.errors import DataError

_MAX_MANIFEST_BYTES = 16 << 20
_DAMAGED = (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError)
"""Errors of a file that no worker has written like this."""


def metadata_rows(file: BinaryIO, name: str, ids: Sequence[RowId]) -> dict[RowId, dict[str, Any]]:
    """Return the metadata of rows that a file of partitioned metadata has.

    Args:
        name: name of the file for errors.

    Raises:
        DataError: the file is damaged.
    """
    found = {}
    try:
        for row_id, row in _rows(file, ids):
            values = row.to_pylist()[0]
            del values["id"]
            found[row_id] = values
    except _DAMAGED as cause:
        raise DataError(f"{name} cannot be read: {cause}") from cause
    return found


def shard_rows(
    open_file: Callable[[str], BinaryIO], folder: str, ids: Sequence[RowId]
) -> dict[RowId, dict[str, Array]]:
    """Return the fixed-shape fields of rows that a partition has, as arrays by name.

    Args:
        open_file: opens a file by its path.
        folder: path of the partition.

    Raises:
        DataError: the manifest or a shard is damaged.
        OSError: a file is missing or cannot be read.
    """
    with open_file(f"{folder}/{PARTITION_FILE}") as manifest_file:
        manifest = _manifest(manifest_file.read(_MAX_MANIFEST_BYTES), folder)
    if manifest.layout is None:
        return {}
    fields = [field for field in manifest.layout.fields if not field.is_ragged]
    found = {}
    for shard in manifest.shards:
        with open_file(f"{folder}/{shard.file}") as file:
            try:
                for row_id, row in _rows(file, ids, {field.name for field in fields}):
                    found[row_id] = {field.name: _array(row.column(field.name), field) for field in fields}
            except _DAMAGED as cause:
                raise DataError(f"{folder}/{shard.file} cannot be read: {cause}") from cause
    return found


def _rows(
    file: BinaryIO, ids: Sequence[RowId], names: set[str] | None = None
) -> Iterator[tuple[RowId, pa.RecordBatch]]:
    """Yield each of `ids` that a file has, with its row: all columns, or these of `names`."""
    content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    schema = pa.ipc.open_file(content).schema
    wanted = [at for at, name in enumerate(schema.names) if names is None or name in names or name == "id"]
    of_ids = _reader(content, [schema.get_field_index("id")])
    of_rows = _reader(content, wanted)
    kind = schema.field("id").type
    # Ids of another type are not in this file.
    known = pa.array([each for each in ids if isinstance(each, str) != pa.types.is_integer(kind)])
    if not len(known):
        return
    for number in range(of_ids.num_record_batches):
        column = of_ids.get_batch(number).column("id")
        at = pa.compute.indices_nonzero(pa.compute.is_in(column, known.cast(kind))).to_pylist()
        batch = of_rows.get_batch(number) if at else None
        for position in at:
            assert batch is not None
            yield column[position].as_py(), batch.slice(position, 1)


def _reader(content: pa.Buffer, columns: list[int]) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(
        content, options=pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    )


def _manifest(content: bytes, folder: str) -> PartitionManifest:
    try:
        value = json.loads(content)
        if value["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {value['schema_version']}, expected {SCHEMA_VERSION}")
        return PartitionManifest.from_json(value)
    except _DAMAGED as cause:
        raise DataError(f"{folder}/{PARTITION_FILE} cannot be read: {cause}") from cause


def _array(column: pa.Array, field: Field) -> Array:
    values: Array = column.storage.flatten().to_numpy(zero_copy_only=False)
    stored = np.asarray(values).view(field.storage).reshape(field.entry_shape)
    return stored.astype(field.dtype, copy=False)
