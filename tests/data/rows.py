"""Write partitions whose values identify their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from cerebro.data.manifests import FailedRow, PartitionManifest, ShardManifest, Source
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter

SOURCE = Source(fingerprint="spec-1", metadata="xxh3_64:0")


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
