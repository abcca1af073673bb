"""A partition's metadata reads the same for any record batches."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import VolumeError
from cerebro.worker.preprocessing.metadata import Metadata


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(0, 5), max_size=6), data=st.data())
def test_any_rows_are_read_from_any_batches(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    """Covers dicts with all or some columns, Arrow columns, and empty batches."""
    path = tmp_path_factory.mktemp("metadata") / "t.arrow"
    total = sum(lengths)
    table = pa.table(
        {"id": pa.array(range(total), pa.int64()), "word": pa.array(map(str, range(total)), pa.string())}
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        for number, length in enumerate(lengths):
            begin = sum(lengths[:number])
            writer.write_batch(
                pa.RecordBatch.from_pydict(table.slice(begin, length).to_pydict(), table.schema)
            )
    metadata = Metadata(path)
    assert (metadata.num_rows, list(metadata.columns)) == (total, ["id", "word"])
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    expected = table.slice(start, stop - start).to_pylist()
    assert metadata.rows(start, stop) == expected
    assert metadata.rows(start, stop, ["id"]) == [{"id": row["id"]} for row in expected]
    if start < stop:
        assert metadata.batch(start, stop).to_pylist() == expected


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM, errno.EMFILE])
def test_an_error_of_the_volume_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A temporary mapping error is retryable."""

    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    path = tmp_path / "t.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([("id", pa.int64())])):
        pass
    monkeypatch.setattr(pa, "memory_map", fail)
    with pytest.raises(VolumeError, match=re.escape(os.strerror(number))):
        Metadata(path)
