"""Rows are found by id in partitioned metadata and in shards, wherever they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cerebro.data.shards as shards_module
from cerebro.data.manifests import PartitionManifest, Source
from cerebro.data.partitions import write_manifest
from cerebro.data.row_lookup import metadata_rows, shard_rows
from cerebro.data.shards import ShardWriter
from cerebro.errors import DataError
from cerebro.ragged_rows import ragged

SOURCE = Source(fingerprint="f", metadata="m")

row_ids = st.one_of(
    st.lists(st.integers(-5, 30), unique=True, max_size=12),
    st.lists(st.text(max_size=3), unique=True, max_size=12),
)


@given(row_ids, row_ids, st.integers(1, 5))
def test_metadata_of_rows_is_that_of_the_whole_table(
    stored: list[int] | list[str], wanted: list[int] | list[str], batch_rows: int
) -> None:
    """For ids of both types, in any number of record batches; unknown ids have no result."""
    kind = pa.string() if stored and isinstance(stored[0], str) else pa.int64()
    table = pa.table({"id": pa.array(stored, kind), "name": [f"row {each!r}" for each in stored]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metadata.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch_rows)
        with path.open("rb") as file:
            found = metadata_rows(file, path.name, wanted)
    known = set(stored)
    assert found == {each: {"name": f"row {each!r}"} for each in wanted if each in known}


@contextmanager
def small_batches(num_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "BATCH_BYTES", num_bytes)
        yield


@given(st.lists(st.integers(0, 11), unique=True), st.sampled_from([1, 100, 1 << 20]))
def test_arrays_of_rows_are_those_that_were_stored(wanted: Sequence[int], batch_bytes: int) -> None:
    """From two shards with record batches of any size, without ragged fields."""

    def row(number: int) -> dict[str, object]:
        image = np.full((3, 4), number, np.uint8)
        return {
            "image": image,
            "words": ragged(np.arange(number)),
            "is_even": number % 2 == 0,
            "x": number / 2,
        }

    with tempfile.TemporaryDirectory() as name, small_batches(batch_bytes):
        folder, shards = Path(name), []
        for index, numbers in enumerate((range(5), range(5, 10))):
            with ShardWriter(
                folder, index, start=numbers.start, stop=numbers.stop, source=SOURCE, id_type=pa.int64()
            ) as writer:
                for number in numbers:
                    writer.add(number, row(number), number)
                shards.append(writer.close())
        write_manifest(folder, PartitionManifest.of(SOURCE, shards))

        def open_file(path: str) -> BinaryIO:
            return (folder.parent / path).open("rb")

        found = shard_rows(open_file, folder.name, wanted)
        assert found.keys() == {each for each in wanted if each < 10}
        for row_id, arrays in found.items():
            number = int(row_id)
            assert arrays["input.is_even"].dtype == bool
            assert {name: value.tolist() for name, value in arrays.items()} == {
                "input.image": [[number] * 4] * 3,
                "input.is_even": number % 2 == 0,
                "input.x": number / 2,
                "output": number,
            }


@pytest.mark.parametrize("content", [b"", b"no table", b"ARROW1\0\0"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Also an empty one."""
    path = tmp_path / "valid-0000.arrow"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(DataError, match=r"valid-0000\.arrow cannot be read"):
        metadata_rows(file, path.name, [1])
