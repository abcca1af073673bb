"""Partitions as folders on a volume: which shards and partitions are complete, and reading and writing their manifests.

ETL tasks declare shards and partitions complete; the agent lists partitions at its start; `mapped` opens them. The
content of manifests is in `manifests`. A file that does not match its manifest is not complete. Nothing is deleted.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro.data.files.durable import verify, write_json
from cerebro.data.manifests import (
    SCHEMA_VERSION,
    FailedRow,
    PartitionManifest,
    ShardEntry,
    ShardManifest,
    Source,
)
from cerebro.errors import DataError, ShardCorruptError, VolumeError
from cerebro.runtime.volume_errors import NO_MEMORY, volume_errors_named

_TRIES = (0.1, 0.4, 0.0)
"""Seconds to wait after each attempt to read a partition before it counts as not there."""

PARTITION_FILE = "partition.json"
STATISTICS_FILE = "statistics.json"


@dataclass(frozen=True, kw_only=True)
class FoundPartition:
    """A complete partition on a volume."""

    dataset: str
    split: str
    partition: int
    folder: Path
    manifest: PartitionManifest


def shard_manifest_path(folder: Path, index: int) -> Path:
    """Return the path of a shard's manifest."""
    return folder / f"shard-{index:05d}.json"


def write_shard_manifest(folder: Path, shard: ShardManifest) -> None:
    """Declare a shard complete; its Arrow file must be in place."""
    write_json(shard_manifest_path(folder, shard.index), shard.to_json())


def write_manifest(folder: Path, manifest: PartitionManifest) -> None:
    """Declare the partition in `folder` complete, as the last step of making it."""
    write_json(folder / PARTITION_FILE, manifest.to_json())


def read_manifest(folder: Path) -> PartitionManifest:
    """Return the manifest of a complete partition.

    Raises:
        DataError: the partition was never completed.
        ShardCorruptError: the manifest is unreadable.
    """
    try:
        return PartitionManifest.from_json(read_json(folder / PARTITION_FILE))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no complete partition ({PARTITION_FILE} is missing): call run_etl first"
        ) from error


def complete_shards(
    folder: Path, *, source: Source | None = None, verify_bytes: bool = True
) -> list[ShardManifest]:
    """Return the complete shards in `folder`, sorted by index.

    The list excludes shards that are missing, do not match their checksum, give two input/output errors in a row or,
    with `source`, have another source.

    Args:
        source: required source of the shards. Default: any.
        verify_bytes: False to compare only the size.

    Raises:
        VolumeError: the volume cannot be read at the moment.
    """
    shards = []
    for path in sorted(folder.glob("shard-*.json")):
        try:
            shard = ShardManifest.from_json(read_json(path))
            _check_twice(folder, shard, verify_bytes=verify_bytes)
        except (ShardCorruptError, DataError, FileNotFoundError):
            continue
        if source is None or shard.source == source:
            shards.append(shard)
    return shards


def failed_rows(folder: Path) -> Iterator[FailedRow]:
    """Yield the failed rows of a complete partition, in row order."""
    for entry in read_manifest(folder).shards:
        if entry.rows_failed:
            yield from ShardManifest.from_json(read_json(shard_manifest_path(folder, entry.index))).failed


def check_bytes(folder: Path, shard: ShardManifest | ShardEntry, *, verify_bytes: bool) -> None:
    """Require that the shard's file has its size and, with `verify_bytes`, its checksum.

    Raises:
        ShardCorruptError: the file is missing or differs.
        VolumeError: the volume cannot be read at the moment.
    """
    path = folder / shard.file
    if verify_bytes:
        verify(path, shard.written)
        return
    try:
        with volume_errors_named(folder):
            size = path.stat().st_size
    except OSError as error:
        raise ShardCorruptError.at(
            f"{path} cannot be read ({error}): preprocess the data again", path
        ) from error
    if size != shard.written.num_bytes:
        raise ShardCorruptError.at(
            f"{path} has {size} bytes, but {shard.written.num_bytes} were written: preprocess the data again",
            path,
        )


def _check_twice(folder: Path, shard: ShardManifest, *, verify_bytes: bool) -> None:
    """Check as `check_bytes` does; a file with two input/output errors in a row counts as corrupt."""
    try:
        check_bytes(folder, shard, verify_bytes=verify_bytes)
    except VolumeError as first:
        if not _is_input_output(first):
            raise
        try:
            check_bytes(folder, shard, verify_bytes=verify_bytes)
        except VolumeError as error:
            if not _is_input_output(error):
                raise
            raise ShardCorruptError.at(
                f"{error.path} gave two input/output errors in a row: preprocess its rows again", error.path
            ) from error


def _is_input_output(error: VolumeError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


def find_partitions(root: Path) -> list[FoundPartition]:
    """Return the complete partitions under `root`, in folders `{dataset}/{split}/partition-{number}`.

    A partition with a missing shard, or one of the wrong size, is not complete.
    """
    partitions = []
    for path in sorted(root.glob(f"*/*/partition-*/{PARTITION_FILE}")):
        folder = path.parent
        number = folder.name.removeprefix("partition-")
        if not number.isdecimal():
            continue
        manifest = _checked(folder)
        if manifest is None:
            continue
        split = folder.parent
        partitions.append(
            FoundPartition(
                dataset=split.parent.name,
                split=split.name,
                partition=int(number),
                folder=folder,
                manifest=manifest,
            )
        )
    return partitions


def _checked(folder: Path) -> PartitionManifest | None:
    """Return the manifest of a complete partition; `None` if it is incomplete or the volume fails `_TRIES` times."""
    for pause_s in _TRIES:
        try:
            manifest = read_manifest(folder)
            for shard in manifest.shards:
                check_bytes(folder, shard, verify_bytes=False)
        except VolumeError:
            time.sleep(pause_s)
        except (ShardCorruptError, DataError):
            return None
        else:
            return manifest
    return None


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a manifest.

    Raises:
        ShardCorruptError: the file is not a JSON manifest.
        DataError: it has another schema version.
        VolumeError: the volume cannot be read at the moment.
    """
    try:
        with volume_errors_named(path.parent, also=NO_MEMORY):
            value = json.loads(path.read_bytes())
        version = value["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ShardCorruptError.at(
            f"{path} is not a manifest ({error}): preprocess the data again", path
        ) from error
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version}, expected {SCHEMA_VERSION}: preprocess the data again"
        )
    assert isinstance(value, dict)
    return value
