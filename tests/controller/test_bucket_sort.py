"""An external sort gives the same order as a sort in memory."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cerebro.errors import StorageFullError
from controller.preparation.bucket_sort import BucketSort, DuplicateIdError

SCHEMA = pa.schema(
    [("id", pa.string()), ("value", pa.int64()), ("words", pa.list_(pa.string())), ("is_odd", pa.bool_())]
)


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    """One row per id, with a column for each kind of layout."""
    columns = [
        [str(n) for n in ids],
        [None if n % 5 == 0 else n for n in ids],
        [[str(n)] * (n % 3) for n in ids],
        [bool(n % 2) for n in ids],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, kind) for each, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def tiny(folder: Path, num_bytes: int = 10_000) -> BucketSort:
    """Scatter every few rows, and split most buckets again."""
    return BucketSort(folder, SCHEMA, num_bytes, chunk_bytes=400, bucket_bytes=300)


def put(sort: BucketSort, keys: dict[int, int], batch: int) -> None:
    ids = list(keys)
    for start in range(0, len(ids), batch):
        part = ids[start : start + batch]
        sort.add(np.array([keys[n] for n in part], np.uint64), rows(part))


KEYS = st.dictionaries(
    st.integers(0, 10_000), st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=120
)
"""Ids; many are equal, or equal in their first bits."""


@settings(max_examples=60)
@example(keys=dict.fromkeys(range(40), 0), batch=6, most=0, estimate=0)
@given(keys=KEYS, batch=st.integers(1, 50), most=st.integers(0, 130), estimate=st.integers(0, 100_000))
def test_rows_come_in_the_order_of_keys_and_ids(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[int, int], batch: int, most: int, estimate: int
) -> None:
    """The result has complete rows up to the limit, and no file remains."""
    folder = tmp_path_factory.mktemp("sort")
    with closing(tiny(folder, estimate)) as sort:
        put(sort, keys, batch)
        found = pa.Table.from_batches(sort.runs(most), SCHEMA)
    expected = sorted(keys, key=lambda n: (keys[n], str(n)))[:most]
    assert found.to_pylist() == rows(expected).to_pylist()
    assert list(folder.iterdir()) == []


@given(keys=KEYS.filter(bool), again=st.data(), most=st.integers(0, 130))
def test_a_duplicate_id_is_found(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[int, int], again: st.DataObject, most: int
) -> None:
    """In any position, also beyond the limit."""
    twice = again.draw(st.sampled_from(sorted(keys)))
    with closing(tiny(tmp_path_factory.mktemp("sort"))) as sort:

        def sorted_again() -> None:
            put(sort, keys, 7)
            put(sort, {twice: keys[twice]}, 1)
            list(sort.runs(most))

        with pytest.raises(DuplicateIdError) as found:
            sorted_again()
    assert found.value.args[0] == [str(twice)]


def test_a_full_volume_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder and a fix."""

    class Full:
        def __init__(self, *given: Any) -> None: ...

        def __enter__(self) -> Full:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *given: object) -> None: ...

    monkeypatch.setattr("controller.preparation.bucket_sort.pa.OSFile", Full)
    with closing(tiny(tmp_path)) as sort, pytest.raises(StorageFullError, match=str(tmp_path)):
        put(sort, {n: n << 55 for n in range(100)}, 10)
