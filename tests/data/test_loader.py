"""Each pass yields every row once, in an order decided by the seed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data import mapped, shards
from cerebro.data.loader import MergedLoader, PartitionLoader
from cerebro.data.manifests import PartitionManifest
from cerebro.data.mapped import MappedRows, share_of
from cerebro.data.merged import Merged
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter
from cerebro.errors import DataError, ShardCorruptError
from tests.data.rows import SOURCE, write_partition


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a partition of 20 rows in three shards."""
    write_partition(tmp_path / "p", [7, 5, 8])
    return tmp_path / "p"


def _order(loader: PartitionLoader) -> list[int]:
    return [int(value) for _, outputs in loader for value in outputs]


@settings(deadline=None, max_examples=60)
@given(
    partitions=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=3),
    seed=st.none() | st.integers(0, 2**70),
    batch_share=st.floats(0.01, 1),
    batch_bytes=st.sampled_from([1, 40, 1 << 20]),
    largest=st.sampled_from([0, 1 << 62]),
)
def test_a_pass_yields_each_row_once(
    partitions: Sequence[Sequence[int]],
    seed: int | None,
    batch_share: float,
    batch_bytes: int,
    largest: int,
) -> None:
    """For any split of rows into partitions, shards and record batches."""
    count = sum(map(sum, partitions))
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH_BYTES", batch_bytes)
        patch.setattr(mapped, "_MAX_BYTES", largest)  # 0: row by row
        folders, first = [], 0
        for number, sizes in enumerate(partitions):
            folders.append(Path(name) / f"partition-{number}")
            write_partition(folders[-1], sizes, first_id=first)
            first += sum(sizes)
        if count == 0:
            with pytest.raises(DataError, match="0 rows"):
                PartitionLoader(folders, batch_size=1, seed=seed)
            return
        size = max(1, int(count * batch_share))
        loader = PartitionLoader(folders, batch_size=size, seed=seed)
        observed = []
        batches = 0
        for inputs, outputs in loader:
            ids = loader.ids
            assert inputs.shape == (len(ids), 3)
            assert outputs.tolist() == ids
            assert inputs[:, 0].tolist() == ids
            assert len(ids) == size or batches == len(loader) - 1
            observed += ids
            batches += 1
        assert batches == len(loader)
        assert len(observed) == count
        assert len(set(observed)) == len(observed)
        if seed is None:
            assert observed == loader.stored_ids()[: len(observed)] == list(range(len(observed)))


def test_the_same_seed_gives_the_same_order(folder: Path) -> None:
    """Two loaders with one seed yield the same batches."""
    orders = [_order(PartitionLoader([folder], batch_size=6, seed=5)) for _ in range(2)]
    assert orders[0] == orders[1]


def test_another_seed_gives_another_order(folder: Path) -> None:
    """Each seed has its own order, which differs from the stored order."""
    orders = {tuple(_order(PartitionLoader([folder], batch_size=1, seed=seed))) for seed in range(20)}
    assert len(orders) == 20
    assert tuple(range(20)) not in orders


def test_a_second_pass_has_its_own_order(folder: Path) -> None:
    """Passes differ from each other, and an equal loader repeats them."""
    first, second = (
        PartitionLoader([folder], batch_size=1, seed=5),
        PartitionLoader([folder], batch_size=1, seed=5),
    )
    passes = [_order(first), _order(first)]
    assert passes[0] != passes[1]
    assert passes == [_order(second), _order(second)]


def test_a_pass_can_start_in_its_middle(folder: Path) -> None:
    """A complete loader yields the same remaining rows and the same next pass."""
    whole = PartitionLoader([folder], batch_size=6, seed=5)
    first, second = _order(whole), _order(whole)
    for start in range(len(whole) + 1):
        loader = PartitionLoader([folder], batch_size=6, seed=5, first=start)
        assert _order(loader) == first[6 * start :]
        assert _order(loader) == second
        assert len(loader) == 4
    with pytest.raises(DataError, match="the first batch is 5, expected one of the 4"):
        PartitionLoader([folder], batch_size=6, seed=5, first=5)


def test_the_order_does_not_change_with_versions(folder: Path) -> None:
    """Stored runs must replay, so this order is fixed for ever."""
    loader = PartitionLoader([folder], batch_size=5, seed=1234567890123456789)
    assert [outputs.tolist() for _, outputs in loader] == [
        [5, 15, 17, 16, 1],
        [4, 9, 6, 11, 3],
        [18, 14, 7, 8, 2],
        [10, 0, 13, 12, 19],
    ]


def test_batches_keep_the_nesting_and_dtypes_of_rows(tmp_path: Path) -> None:
    """Nesting, shapes and dtypes equal the rows', including bools; an absent output is None."""
    with ShardWriter(tmp_path, 0, start=0, stop=2, source=SOURCE, id_type=pa.string()) as writer:
        for row_id in ("a", "b"):
            writer.add(row_id, {"x": (np.zeros((2, 3), np.float16), row_id == "b"), "y": np.uint16(7)}, None)
        write_manifest(tmp_path, PartitionManifest.of(SOURCE, [writer.close()]))
    loader = PartitionLoader([tmp_path], batch_size=2, seed=None)
    ((inputs, outputs),) = list(loader)
    assert outputs is None
    assert isinstance(inputs["x"], tuple)
    assert (inputs["x"][0].dtype, inputs["x"][0].shape) == (torch.float16, (2, 2, 3))
    assert (inputs["x"][1].dtype, inputs["x"][1].tolist()) == (torch.bool, [False, True])
    assert (inputs["y"].dtype, inputs["y"].tolist()) == (torch.uint16, [7, 7])
    assert loader.ids == ["a", "b"]


def test_changing_a_batch_changes_no_other_data(folder: Path) -> None:
    """Changing a batch in place changes neither the data nor other batches."""
    loader = PartitionLoader([folder], batch_size=6, seed=None)
    kept = list(loader)
    for inputs, _ in kept:
        inputs.fill_(-1)
    assert next(inputs[:, 0].tolist() for inputs, _ in loader) == [0, 1, 2, 3, 4, 5]
    assert sorted(value for _, outputs in kept for value in outputs.tolist()) == list(range(20))


def test_a_batch_larger_than_the_partition_is_an_error(folder: Path) -> None:
    """The error names both numbers and the partition."""
    with pytest.raises(DataError, match=rf"batch_size 21 is larger than the 20 rows of .*{folder}"):
        PartitionLoader([folder], batch_size=21, seed=0)
    assert len(PartitionLoader([folder], batch_size=20, seed=0)) == 1


@pytest.mark.parametrize(("batch_size", "seed"), [(0, 0), (-1, 0), (1, -1)])
def test_sizes_and_seeds_out_of_range_are_errors(folder: Path, batch_size: int, seed: int) -> None:
    """Invalid values are not replaced silently."""
    with pytest.raises(DataError, match="expected"):
        PartitionLoader([folder], batch_size=batch_size, seed=seed)


def test_partitions_of_other_fields_do_not_mix(tmp_path: Path, folder: Path) -> None:
    """The error names the folder."""
    other = tmp_path / "other"
    with ShardWriter(other, 0, start=0, stop=1, source=SOURCE, id_type=pa.int64()) as writer:
        writer.add(0, np.zeros(4, np.float32), 1)
        write_manifest(other, PartitionManifest.of(SOURCE, [writer.close()]))
    with pytest.raises(DataError, match=rf"{other} does not fit.*shape"):
        PartitionLoader([folder, other], batch_size=1, seed=0)


@pytest.mark.parametrize("damage", ["absent", "short", "foreign"])
def test_a_damaged_shard_is_named(folder: Path, damage: str) -> None:
    """A missing, truncated or invalid file is reported as corrupt with its path."""
    shard = sorted(folder.glob("*.arrow"))[1]
    if damage == "absent":
        shard.unlink()
    elif damage == "short":
        shard.write_bytes(shard.read_bytes()[:-8])
    else:
        shard.write_bytes(b"x" * shard.stat().st_size)
    with pytest.raises(ShardCorruptError, match=shard.name):
        PartitionLoader([folder], batch_size=1, seed=0)


def test_open_rows_outlive_their_files(folder: Path) -> None:
    """Rebuilding a partition does not affect a running sub-epoch."""
    rows = MappedRows.open([folder])
    for path in folder.iterdir():
        path.unlink()
    assert sorted(_order(PartitionLoader(rows, batch_size=6, seed=0))) == list(range(20))


def _prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cerebro-prefetch"]


def test_other_devices_are_fed_by_a_thread_that_ends(folder: Path) -> None:
    """A thread gathers batches for a device, and ends when a pass stops early. torch's "meta" device takes the same
    path without a GPU.
    """
    loader = PartitionLoader([folder], batch_size=6, seed=0, device="meta")
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(loader)
    for inputs, _ in islice(batches, 2):
        assert inputs.device.type == "meta"
        assert len(_prefetchers()) == 1
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert _prefetchers() == []
    assert sum(len(outputs) for _, outputs in loader) == 20
    assert _prefetchers() == []


@pytest.mark.gpu
def test_batches_reach_a_gpu_unchanged(folder: Path) -> None:
    """Pinned memory is not overwritten before a non-blocking copy ends."""
    loader = PartitionLoader([folder], batch_size=1, seed=3, device="cuda")
    host = PartitionLoader([folder], batch_size=1, seed=3)
    kept = list(loader)
    assert [outputs.item() for _, outputs in kept] == [outputs.item() for _, outputs in host]


@given(rows=st.integers(0, 60), of=st.integers(1, 9))
def test_shares_of_a_batch_are_its_rows_in_order(rows: int, of: int) -> None:
    """Shares are contiguous, and their sizes differ by at most one."""
    shares = [share_of(rows, index, of) for index in range(of)]
    assert [row for begin, end in shares for row in range(begin, end)] == list(range(rows))
    sizes = [end - begin for begin, end in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(size=st.integers(1, 20), of=st.integers(1, 4), first=st.integers(0, 2), seed=st.integers(0, 9))
def test_ranks_read_the_batches_of_one_loader(size: int, of: int, first: int, seed: int) -> None:
    """The concatenated shares equal the batches of one loader.

    A rank without rows borrows a row of another rank, and the counts show it.
    """
    with TemporaryDirectory() as name:
        write_partition(Path(name), [7, 5, 8])
        first = min(first, -(-20 // size))
        start = partial(PartitionLoader, [Path(name)], batch_size=size, seed=seed)
        whole = [loaded.tolist() for _, loaded in start(first=first)]
        loaders = [start(first=first, share=(index, of)) for index in range(of)]
        read, counted = [], []
        for loader in loaders:
            batches = []
            for (_, rows), batch in zip(loader, whole, strict=True):
                own_rows, every = loader.counts
                assert every == len(batch)
                assert len(rows) == max(own_rows, 1)
                assert rows.tolist() == loader.ids
                assert set(loader.ids) <= set(batch)
                batches.append(loader.ids[:own_rows])
            assert len(loader) == -(-20 // size)
            read.append(batches)
            counted.append((loader.shared_rows, loader.own_rows))
        assert [[row for part in parts for row in part] for parts in zip(*read, strict=True)] == whole
        assert sum(shared for shared, _ in counted) == 20
        full = [start(share=(index, of)) for index in range(of)]
        assert [sum(len(rows) for _, rows in loader) for loader in full] == [
            own_rows for _, own_rows in counted
        ]


@settings(max_examples=60)
@given(
    rows=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    share=st.floats(0.02, 1),
    seed=st.integers(0, 9),
    first=st.integers(0, 3),
)
def test_workers_read_partitions_as_one(rows: list[int], share: float, seed: int, first: int) -> None:
    """Each worker reads its own rows once.

    Together they form the full batches of a single process, and partitions contribute evenly to the batches.
    """
    total, size = sum(rows), max(1, int(sum(rows) * share))
    first, begins = min(first, -(-total // size)), [sum(rows[:number]) for number in range(len(rows))]
    with TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(len(rows))]
        for folder, count, begin in zip(folders, rows, begins, strict=True):
            write_partition(folder, [count], first_id=begin)
        seeds = [seed + number for number in range(len(rows))]
        alone = [sorted(loaded.tolist()) for _, loaded in MergedLoader(folders, batch_size=size, seeds=seeds)]
        assert sorted(row for batch in alone for row in batch) == list(range(total))
        together: list[list[int]] = [[] for _ in alone]
        for number, folder in enumerate(folders):
            merged = Merged(rows=tuple(rows), number=number)
            make = partial(PartitionLoader, [folder], batch_size=size, seed=seeds[number], merged=merged)
            whole, part = make(), make(first=first)
            assert (len(whole), whole.num_rows, whole.shared_rows) == (len(alone), total, rows[number])
            read = [(whole.ids[: whole.counts[0]], whole.counts) for _ in whole]
            assert [(part.ids[: part.counts[0]], part.counts) for _ in part] == read[first:]
            for batch, (ids, (own_rows, every)), due in zip(together, read, alone, strict=True):
                assert every == len(due)
                assert abs(own_rows - rows[number] * every / total) < len(rows)
                batch.extend(map(int, ids))
        assert [sorted(batch) for batch in together] == alone


def test_large_rows_are_copied_into_memory_of_the_caller(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for pinned memory of a GPU: the same rows from all shards, in the given buffers."""
    rows = MappedRows.open([folder])
    order, bounds = np.random.default_rng(3).permutation(20), np.array([0, 8, 16, 20])
    expected = [planned.columns() for planned in rows.planned(order, bounds)]
    monkeypatch.setattr(mapped, "_LARGE_ROW", 1)
    sizes: list[int] = []

    def allocate(num_bytes: int) -> np.ndarray:
        sizes.append(num_bytes)
        return np.full(num_bytes, 255, np.uint8)

    found = [planned.columns(allocate) for planned in rows.planned(order, bounds)]
    for one, other in zip(found, expected, strict=True):
        for column, known in zip(one, other, strict=True):
            np.testing.assert_array_equal(column, known)
            assert column.dtype == known.dtype
    assert len(sizes) == 3 * len(rows.fields)
