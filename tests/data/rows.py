"""Write partitions whose values identify their rows, and parse whole tables."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from cerebro.data.manifests import FailedRow, PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter
from cerebro.data.tables.cell_types import as_type, type_of
from cerebro.data.tables.table_files import format_of
from cerebro.data.tables.whole_tables import combined, parse_cells
from cerebro.errors import MetadataError

SOURCE = Source(fingerprint="spec-1", metadata="xxh3_64:0")


def parse_table(content: bytes, name: str, types: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """Parse a table; its name determines the format: CSV, TSV or Parquet.

    Args:
        content: bytes of the file.
        name: name of the file.
        types: types of text columns. `cell_types.type_of` infers the others from all cells.

    Raises:
        MetadataError: the content does not have this format.
    """
    if format_of(name) == "Parquet":
        try:
            return pa.parquet.read_table(io.BytesIO(content))
        except pa.ArrowException as cause:
            raise MetadataError(f"{name} cannot be read as Parquet: {cause}") from cause
    cells = parse_cells(content, name, types)
    for position, column in enumerate(cells.column_names):
        if column not in types:
            text = combined(cells.column(position))
            kind = type_of(column, text)
            cells = cells.set_column(position, pa.field(column, kind), as_type(text, kind))
    return cells


def write_shard(
    folder: Path, index: int, ids: Sequence[int], *, start: int = 0, shape: tuple[int, ...] = (3,)
) -> ShardManifest:
    """Write a shard of rows with input ``full(shape, id)`` and output ``id``."""
    with ShardWriter(
        folder, index, start=start, stop=start + len(ids), source=SOURCE, id_type=pa.int64()
    ) as writer:
        for row in ids:
            writer.add(row, np.full(shape, row, np.float32), row)
        return writer.close()


def write_partition(folder: Path, sizes: Sequence[int], *, first_id: int = 0) -> PartitionManifest:
    """Write a complete partition with these shard sizes; ids start at ``first_id``."""
    shards, start = [], 0
    for index, size in enumerate(sizes):
        ids = range(first_id + start, first_id + start + size)
        shards.append(write_shard(folder, index, ids, start=start))
        start += size
    manifest = PartitionManifest.of(SOURCE, shards)
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, manifest)
    return manifest


def failed(row: int) -> FailedRow:
    """Make a failed row."""
    return FailedRow(id=row, error="ValueError: bad", traceback="Traceback ...\nValueError: bad")
