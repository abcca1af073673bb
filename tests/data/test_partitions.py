"""Which shards and partitions of a volume are complete."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cerebro.data.files import durable
from cerebro.data.manifests import PartitionManifest, ShardManifest, Source
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import (
    PARTITION_FILE,
    complete_shards,
    failed_rows,
    find_partitions,
    read_manifest,
    shard_manifest_path,
    write_manifest,
)
from cerebro.data.shards import ShardWriter
from cerebro.errors import DataError, RowError, ShardCorruptError, VolumeError
from tests.data.rows import SOURCE, failed, write_partition, write_shard


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_partition_is_identified_by_its_folder(tmp_path: Path) -> None:
    """Folders give data set, split and number; the manifest gives totals."""
    folder = tmp_path / "digits" / "train" / "partition-0003"
    manifest = write_partition(folder, [2, 0, 3])
    (found,) = find_partitions(tmp_path)
    assert (found.dataset, found.split, found.partition, found.folder) == ("digits", "train", 3, folder)
    assert found.manifest == manifest
    assert (manifest.rows_in, manifest.rows_out, manifest.rows_failed) == (5, 5, 0)
    assert manifest.num_bytes == sum(path.stat().st_size for path in folder.glob("*.arrow"))


def test_a_missing_volume_has_no_partitions(tmp_path: Path) -> None:
    """A new worker has no folder yet."""
    assert find_partitions(tmp_path / "absent") == []


@pytest.mark.parametrize("damage", ["no manifest", "not json", "shard missing", "shard cut short"])
def test_a_damaged_partition_is_not_complete(tmp_path: Path, damage: str) -> None:
    """Without its manifest or a shard it is not offered for training."""
    folder = tmp_path / "digits" / "train" / "partition-0000"
    manifest = write_partition(folder, [2, 3])
    shard = folder / manifest.shards[1].file
    if damage == "no manifest":
        (folder / PARTITION_FILE).unlink()
    elif damage == "not json":
        (folder / PARTITION_FILE).write_text("{")
    elif damage == "shard missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    assert find_partitions(tmp_path) == []


def test_changed_bytes_are_found_on_request(tmp_path: Path) -> None:
    """Sizes are always checked; checksums, which read all bytes, on request."""
    folder = tmp_path / "digits" / "train" / "partition-0000"
    manifest = write_partition(folder, [2, 3])
    _flip_a_byte(folder / manifest.shards[0].file)
    assert len(find_partitions(tmp_path)) == 1
    assert [shard.index for shard in complete_shards(folder)] == [1]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_shard_that_is_newer_than_its_manifest_is_checked(tmp_path: Path, is_damaged: bool) -> None:
    """Training never uses a changed byte; a restored copy with another time passes."""
    manifest = write_partition(tmp_path, [2, 3])
    path = tmp_path / manifest.shards[1].file
    if is_damaged:
        _flip_a_byte(path)
    newer = (tmp_path / PARTITION_FILE).stat().st_mtime_ns + 1
    os.utime(path, ns=(newer, newer))
    if not is_damaged:
        assert MappedRows.open([tmp_path]).num_rows == 5
        return
    with pytest.raises(ShardCorruptError, match=path.name):
        MappedRows.open([tmp_path])


def test_shards_of_another_source_are_omitted(tmp_path: Path) -> None:
    """Shards of another spec or of other rows do not count."""
    shard = write_shard(tmp_path, 0, range(3))
    assert complete_shards(tmp_path, source=SOURCE) == [shard]
    assert complete_shards(tmp_path, source=Source(fingerprint="spec-2", metadata=SOURCE.metadata)) == []
    assert complete_shards(tmp_path, source=Source(fingerprint="spec-1", metadata="xxh3_64:1")) == []


def test_a_manifest_of_another_version_is_an_error(tmp_path: Path) -> None:
    """The error names the fix; data of a later version is never partly read."""
    write_partition(tmp_path, [1])
    path = tmp_path / PARTITION_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(DataError, match=r"schema version 99.*preprocess the data again"):
        read_manifest(tmp_path)


def test_an_unfinished_partition_is_reported(tmp_path: Path) -> None:
    """The error names the fix; an unreadable manifest is reported as corrupt."""
    with pytest.raises(DataError, match="run_etl"):
        read_manifest(tmp_path)
    (tmp_path / PARTITION_FILE).write_text("[]")
    with pytest.raises(ShardCorruptError, match="not a manifest"):
        read_manifest(tmp_path)


def test_failed_rows_of_a_partition_are_listed_in_order(tmp_path: Path) -> None:
    """With their errors, so missing rows can be looked up."""
    shards: list[ShardManifest] = []
    for index in range(3):
        writer = ShardWriter(
            tmp_path, index, start=index * 2, stop=index * 2 + 2, source=SOURCE, id_type=pa.int64()
        )
        with writer:
            writer.add(index * 2, 1.0, 1)
            writer.fail(failed(index * 2 + 1))
            shards.append(writer.close())
    write_manifest(tmp_path, PartitionManifest.of(SOURCE, shards))
    assert [row.id for row in failed_rows(tmp_path)] == [1, 3, 5]


def test_a_manifest_survives_the_disk(tmp_path: Path) -> None:
    """For shards and partitions."""
    manifest = write_partition(tmp_path, [2, 3])
    assert read_manifest(tmp_path) == manifest
    assert [shard.file for shard in complete_shards(tmp_path)] == [shard.file for shard in manifest.shards]
    assert json.loads(shard_manifest_path(tmp_path, 1).read_text())["rows_in"] == 3


def test_a_partition_with_a_gap_cannot_be_declared(tmp_path: Path) -> None:
    """Shards must cover all rows once."""
    shards = [write_shard(tmp_path, 0, range(3)), write_shard(tmp_path, 1, range(3), start=4)]
    with pytest.raises(DataError, match="starts at row 4, expected row 3"):
        PartitionManifest.of(SOURCE, shards)


def test_shards_that_do_not_fit_together_cannot_be_declared(tmp_path: Path) -> None:
    """Shapes that differ between shards are found although each shard is consistent."""
    shards = [write_shard(tmp_path, 0, [5, 6]), write_shard(tmp_path, 1, [7], start=2, shape=(4,))]
    with pytest.raises(RowError, match=r"row 7 has shape \(4,\).*\(id 5\) has shape \(3,\)"):
        PartitionManifest.of(SOURCE, shards)


def test_a_partition_whose_rows_all_failed_is_complete(tmp_path: Path) -> None:
    """A shard without rows has no fields to compare."""
    with ShardWriter(tmp_path, 0, start=0, stop=1, source=SOURCE, id_type=pa.int64()) as writer:
        writer.fail(failed(0))
        shards = [writer.close()]
    shards.append(write_shard(tmp_path, 1, np.arange(1, 3).tolist(), start=1))
    manifest = PartitionManifest.of(SOURCE, shards)
    assert (manifest.rows_in, manifest.rows_out, manifest.rows_failed) == (3, 2, 1)
    assert manifest.layout == shards[1].layout


@pytest.mark.parametrize(("errors", "found"), [(0, [0, 1]), (1, [0, 1]), (2, [1])])
def test_a_shard_that_cannot_be_read_twice_counts_as_missing(
    errors: int, found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad disk block must not block preprocessing."""
    write_partition(tmp_path, [2, 3])
    left = [OSError(errno.EIO, "input/output error")] * errors
    read = durable.checksum

    def bad(path: Path) -> durable.Written:
        if left:
            raise left.pop()
        return read(path)

    monkeypatch.setattr(durable, "checksum", bad)
    assert [shard.index for shard in complete_shards(tmp_path)] == found


def test_an_unavailable_volume_makes_no_shard_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard is replaced."""
    write_partition(tmp_path, [2])

    def stale(path: Path) -> durable.Written:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(durable, "checksum", stale)
    with pytest.raises(VolumeError):
        complete_shards(tmp_path)


def test_a_shard_that_cannot_be_mapped_for_lack_of_memory_is_not_damaged(tmp_path: Path) -> None:
    """The error is the volume's, so the attempt is repeated; afterwards the shard opens."""
    manifest = write_partition(tmp_path, [2])
    path = tmp_path / manifest.shards[0].file
    before = path.stat()
    os.truncate(path, 4 << 30)  # sparse: more address space than the limit below leaves
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a newer file is read as a whole first
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        with pytest.raises(VolumeError, match=r"Cannot allocate memory|errno 12") as raised:
            MappedRows.open([tmp_path])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert raised.value.path == str(tmp_path)
    os.truncate(path, before.st_size)
    assert MappedRows.open([tmp_path]).num_rows == 2


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.ENFILE]
)
def test_a_shard_that_cannot_be_mapped_for_a_moment_is_not_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these errors is the volume's; the second attempt opens the shard."""
    write_partition(tmp_path, [2])
    errors = [OSError(number, os.strerror(number))]
    memory_map = pa.memory_map

    def unavailable(path: str) -> pa.MemoryMappedFile:
        if errors:
            raise errors.pop()
        return memory_map(path)

    monkeypatch.setattr(pa, "memory_map", unavailable)
    with pytest.raises(VolumeError, match=f"errno {number}"):
        MappedRows.open([tmp_path])
    assert MappedRows.open([tmp_path]).num_rows == 2
