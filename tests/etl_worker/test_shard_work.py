"""Rows are cut into shards without loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etl_worker.shard_work import MAX_SHARD_ROWS, cut


@given(rows=st.integers(0, 200_000), cores=st.integers(1, 64))
def test_each_row_is_in_one_shard(rows: int, cores: int) -> None:
    """Shards have no gaps, overlaps, empty or oversized ranges, and all cores have work."""
    ranges = cut(rows, cores)
    assert [item.index for item in ranges] == list(range(len(ranges)))
    edges = [0, *(item.stop for item in ranges)]
    assert [item.start for item in ranges] == edges[:-1]
    assert edges[-1] == rows
    sizes = [item.stop - item.start for item in ranges]
    assert all(1 <= size <= MAX_SHARD_ROWS for size in sizes)
    assert len(ranges) >= min(rows, cores)
    if sizes:
        assert max(sizes) - min(sizes) <= 1
