"""Shards return the written rows, and count rows in as rows out plus failed rows."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cerebro.data import shards
from cerebro.data.manifests import PartitionManifest
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import complete_shards, write_manifest
from cerebro.data.shards import ShardWriter
from cerebro.data.trees import DTYPES, Array
from cerebro.errors import DataError, RowError, StorageFullError
from tests.data.rows import SOURCE, failed, write_shard


def _writer(folder: Path, num_rows: int, id_type: pa.DataType | None = None) -> ShardWriter:
    kind = pa.int64() if id_type is None else id_type
    return ShardWriter(folder, 0, start=0, stop=num_rows, source=SOURCE, id_type=kind)


def _read(folder: Path) -> tuple[MappedRows, list[Any]]:
    """Read all rows of the shards in a folder, one array per field."""
    write_manifest(folder, PartitionManifest.of(SOURCE, complete_shards(folder)))
    rows = MappedRows.open([folder])
    batches = list(rows.planned(np.arange(rows.num_rows), np.unique([0, rows.num_rows])))
    return rows, batches[0].columns() if batches else []


_columns = st.integers(0, 12).flatmap(
    lambda count: st.lists(
        st.sampled_from([np.dtype(name) for name in DTYPES]).flatmap(
            lambda dtype: npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3).flatmap(
                lambda shape: npst.arrays(dtype, (count, *shape), elements={"allow_nan": False})
            )
        ),
        min_size=1,
        max_size=3,
    )
)


@settings(deadline=None, max_examples=60)
@given(columns=_columns, batch_bytes=st.sampled_from([1, 64, 1 << 20]), as_text=st.booleans())
def test_rows_survive_the_disk(columns: Sequence[Array], batch_bytes: int, as_text: bool) -> None:
    """For any dtypes, shapes, ids and numbers of record batches."""
    count = len(columns[0])
    ids = [f"row-{i}" if as_text else i for i in range(count)]
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH_BYTES", batch_bytes)
        with _writer(Path(name), count, pa.string() if as_text else pa.int64()) as writer:
            for position, row_id in enumerate(ids):
                writer.add(row_id, tuple(column[position] for column in columns), None)
            shard = writer.close()
        assert (shard.rows_in, shard.rows_out) == (count, count)
        rows, read = _read(Path(name))
        assert rows.ids() == ids
        if count:
            for column, found in zip(columns, read, strict=True):
                assert found.shape == column.shape
                assert np.array_equal(found, column.astype(found.dtype))


def test_a_shard_larger_than_a_batch_is_written_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch bounds memory, not the shard."""
    monkeypatch.setattr(shards, "BATCH_BYTES", 40)  # three rows of 12 bytes
    shard = write_shard(tmp_path, 0, range(10), shape=(1,))
    with pa.memory_map(str(tmp_path / shard.file)) as file:
        assert pa.ipc.open_file(file).num_record_batches == 4


def test_failed_rows_are_counted_separately(tmp_path: Path) -> None:
    """Failed rows keep error and traceback."""
    with _writer(tmp_path, 3) as writer:
        writer.add(0, 1.0, 1)
        writer.fail(failed(1))
        writer.add(2, 1.0, 1)
        shard = writer.close()
    assert (shard.rows_in, shard.rows_out, shard.failed) == (3, 2, (failed(1),))
    assert complete_shards(tmp_path) == [shard]
    assert _read(tmp_path)[0].ids() == [0, 2]


def test_a_shard_without_rows_is_complete(tmp_path: Path) -> None:
    """If every row failed or none existed, the shard has only its id column."""
    with _writer(tmp_path, 2, pa.string()) as writer:
        writer.fail(failed(0))
        writer.fail(failed(1))
        shard = writer.close()
    assert shard.layout is None
    with pa.memory_map(str(tmp_path / shard.file)) as file:
        assert pa.ipc.open_file(file).read_all().schema.field("id").type == pa.string()
    assert _read(tmp_path)[0].num_rows == 0


def test_missing_rows_are_an_error(tmp_path: Path) -> None:
    """A shard must account for every row of its range."""
    with _writer(tmp_path, 3) as writer:
        writer.add(0, 1.0, 1)
        with pytest.raises(DataError, match="3 rows in, but 1 out and 0 failed"):
            writer.close()
    assert complete_shards(tmp_path) == []


def test_a_shard_that_was_not_closed_leaves_no_trace(tmp_path: Path) -> None:
    """An error removes the temporary files."""
    with _writer(tmp_path, 2) as writer:
        writer.add(0, np.zeros(3), 1)
        with pytest.raises(RowError, match="shape"):
            writer.add(1, np.zeros(4), 1)
    assert list(tmp_path.iterdir()) == []


def test_values_are_copied_when_added(tmp_path: Path) -> None:
    """A row function may reuse its arrays."""
    reused = np.zeros(2)
    with _writer(tmp_path, 2) as writer:
        writer.add(0, reused, None)
        reused[:] = 9
        writer.add(1, reused, None)
        writer.close()
    assert _read(tmp_path)[1][0].tolist() == [[0, 0], [9, 9]]


def test_bools_are_tagged_bytes(tmp_path: Path) -> None:
    """Other readers see bytes and a tag for the type."""
    with _writer(tmp_path, 1) as writer:
        writer.add(0, np.array([True, False]), None)
        shard = writer.close()
    with pa.memory_map(str(tmp_path / shard.file)) as file:
        field = pa.ipc.open_file(file).schema.field("input")
    assert field.type == pa.fixed_shape_tensor(pa.uint8(), [2])
    assert field.metadata == {b"cerebro.dtype": b"bool"}


def test_a_disk_that_fills_up_in_a_shard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow passes the error on, and no file of the shard remains."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError, match=str(tmp_path)):
        write_shard(tmp_path, 0, range(3))
    assert list(tmp_path.iterdir()) == []
