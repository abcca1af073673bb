"""Ragged fields: batches equal the written rows, and invalid rows are reported by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro import Ragged, ragged
from cerebro.client.dry_run.training import row_of
from cerebro.data import mapped, shards
from cerebro.data.fields import Layout
from cerebro.data.loader import MergedLoader, PartitionLoader
from cerebro.data.manifests import PartitionManifest, ShardManifest
from cerebro.data.mapped import MappedRows
from cerebro.data.merged import Merged
from cerebro.data.partitions import read_json, read_manifest, write_manifest
from cerebro.data.shards import ShardWriter
from cerebro.data.trees import DTYPES, flatten
from cerebro.errors import DataError, RowError, ShardCorruptError
from tests.data.rows import SOURCE
from trial_runner.limited_loader import LimitedLoader

Rows = Sequence[tuple[Any, Any]]


def _write(folder: Path, rows: Rows, edges: Sequence[int]) -> PartitionManifest:
    """Write a complete partition in shards split at `edges`."""
    manifests: list[ShardManifest] = []
    for index, (start, stop) in enumerate(pairwise(edges)):
        with ShardWriter(folder, index, start=start, stop=stop, source=SOURCE, id_type=pa.int64()) as writer:
            for row in range(start, stop):
                writer.add(row, *rows[row])
            manifests.append(writer.close())
    manifest = PartitionManifest.of(SOURCE, manifests)
    write_manifest(folder, manifest)
    return manifest


def _leaf(batch: Any, row: int) -> Any:
    return batch[row].numpy()


def _batch_of(leaves: Sequence[Any]) -> Any:
    """Build a batch function's result from a row function's results."""
    is_ragged = not isinstance(leaves[0], np.ndarray)
    return Ragged.of([leaf.value for leaf in leaves]) if is_ragged else np.stack(leaves)


@st.composite
def _columns(draw: st.DrawFn) -> list[list[Any]]:
    """Generate ragged and plain fields of a few rows."""
    count = draw(st.integers(1, 12))
    fields = []
    for _ in range(draw(st.integers(1, 3))):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        rest = draw(st.sampled_from([(), (2,), (1, 3), (0,)]))
        lengths = draw(st.none() | st.lists(st.integers(0, 9), min_size=count, max_size=count))
        random = np.random.default_rng(draw(st.integers(0, 99)))
        columns = [
            random.integers(0, 2, ((3 if lengths is None else lengths[row]), *rest)).astype(dtype)
            for row in range(count)
        ]
        fields.append(columns if lengths is None else [ragged(row) for row in columns])
    return fields


@settings(deadline=None, max_examples=30)
@given(
    columns=_columns(),
    batch_bytes=st.sampled_from([1, 100, 1 << 20]),
    long=st.sampled_from([0, 2, 128]),
    largest=st.sampled_from([0, 1 << 62]),
    seed=st.none() | st.integers(0, 9),
    of=st.integers(1, 3),
    data=st.data(),
)
def test_batches_have_the_rows_that_were_written(
    columns: list[list[Any]],
    batch_bytes: int,
    long: int,
    largest: int,
    seed: int | None,
    of: int,
    data: st.DataObject,
) -> None:
    """For any dtypes, lengths, shards, record batches, order, batch size, first batch and share."""
    count = len(columns[0])
    rows = [((*(column[row] for column in columns[:-1]), row), columns[-1][row]) for row in range(count)]
    inner = data.draw(st.lists(st.integers(0, count), max_size=3))
    size = data.draw(st.integers(1, count))
    first = data.draw(st.integers(0, 1))
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH_BYTES", batch_bytes)
        patch.setattr(mapped, "_LONG_ROW", long)
        patch.setattr(mapped, "_MAX_BYTES", largest)
        _write(Path(name), rows, sorted({0, *inner, count}))
        observed = []
        for index in range(of):
            loader = PartitionLoader([Path(name)], batch_size=size, seed=seed, first=first, share=(index, of))
            for inputs, outputs in loader:
                ids = [int(row) for row in loader.ids]
                assert inputs[-1].tolist() == ids
                for place, row in enumerate(ids):
                    for batch, column in zip([*inputs[:-1], outputs], columns, strict=True):
                        expected = column[row] if isinstance(column[row], np.ndarray) else column[row].value
                        found = _leaf(batch, place)
                        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                        assert np.array_equal(found, expected)
                observed += ids[: loader.counts[0]]
        assert len(observed) == len(set(observed)) == max(0, count - first * size)


@settings(deadline=None, max_examples=15)
@given(columns=_columns(), batch_bytes=st.sampled_from([1, 60, 1 << 20]), data=st.data())
def test_rows_and_batches_produce_the_same_file(
    columns: list[list[Any]], batch_bytes: int, data: st.DataObject
) -> None:
    """Byte for byte, for any split of rows into batches."""
    count = len(columns[0])
    edges = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BATCH_BYTES", batch_bytes)
        _write(
            Path(name) / "rows", [(tuple(c[row] for c in columns), None) for row in range(count)], [0, count]
        )
        with ShardWriter(
            Path(name) / "batches", 0, start=0, stop=count, source=SOURCE, id_type=pa.int64()
        ) as writer:
            for start, stop in pairwise(edges):
                writer.add_batch(
                    range(start, stop), tuple(_batch_of(column[start:stop]) for column in columns), None
                )
            writer.close()
        one, other = (next((Path(name) / each).glob("*.arrow")).read_bytes() for each in ("rows", "batches"))
        assert one == other


def test_memory_is_bounded_by_bytes_not_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record batch ends before it exceeds the limit; a larger row is a batch by itself."""
    monkeypatch.setattr(shards, "BATCH_BYTES", 100)
    lengths = [4, 4, 0, 0, 500, 1, 1]  # of 8 bytes, and 8 for each offset
    _write(tmp_path, [(ragged(np.zeros(length)), None) for length in lengths], [0, 7])
    with pa.memory_map(str(next(tmp_path.glob("*.arrow")))) as file:
        reader = pa.ipc.open_file(file)
        found = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    assert found == [4, 1, 2]


def test_other_readers_see_lists(tmp_path: Path) -> None:
    """Lists of numbers, or of fixed-shape tensors; the manifest writes null for any length."""
    rows = [(ragged(np.array([True])), ragged(np.zeros((2, 3), np.float32)))]
    _write(tmp_path, rows, [0, 1])
    with pa.memory_map(str(next(tmp_path.glob("*.arrow")))) as file:
        schema = pa.ipc.open_file(file).schema
    assert schema.field("input").type == pa.large_list(pa.field("item", pa.uint8(), nullable=False))
    assert schema.field("input").metadata == {b"cerebro.dtype": b"bool"}
    tensors = pa.fixed_shape_tensor(pa.float32(), [3])
    assert schema.field("output").type == pa.large_list(pa.field("item", tensors, nullable=False))
    stored = read_json(tmp_path / "partition.json")
    assert [field["shape"] for field in stored["layout"]["fields"]] == [[None], [None, 3]]
    assert read_manifest(tmp_path).layout is not None


_WORDS = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (ragged(np.zeros((2, 4), np.float32)), r"\(any, 4\).*\(any, 3\).*np\.zeros\(\(0, 300\)"),
        (ragged(np.zeros((2, 3), np.float64)), "float64.*float32.*astype"),
        (ragged(np.zeros(2, np.float32)), r"\(any,\).*\(any, 3\).*first axis"),
        (np.zeros((2, 3), np.float32), r"\(2, 3\).*\(any, 3\).*cerebro\.ragged\(array\) in every row"),
        (ragged(3), r"field 'input\.x' is ragged\(int\).*np\.asarray"),
        (ragged([1, 2]), r"field 'input\.x' is ragged\(list\).*np\.asarray"),
        (ragged(np.array(["a"])), "array of dtype <U1"),
        (Ragged.of([_WORDS]), r"a Ragged is of many rows.*cerebro\.ragged"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, other: Any, expected: str) -> None:
    """With its field, its value, the first row's value and the fix."""
    rows = [({"x": ragged(np.zeros((5, 3), np.float32))}, 1), ({"x": other}, 1)]
    with pytest.raises(RowError, match=rf"(?i)(row 1|'input\.x').*{expected}"):
        _write(tmp_path, rows, [0, 2])


def test_an_error_about_changed_shapes_suggests_ragged_fields(tmp_path: Path) -> None:
    """The error suggests to mark the field as ragged."""
    with pytest.raises(RowError, match=r"Pad.*or return cerebro\.ragged\(array\) in every row"):
        _write(tmp_path, [(np.zeros(2), 1), (np.zeros(3), 1)], [0, 2])
    with pytest.raises(RowError, match=r"\(any,\).*\(2,\).*ragged in all rows of a split or in none"):
        _write(tmp_path, [(np.zeros(2), 1), (ragged(np.zeros(2)), 1)], [0, 2])


def _broken() -> Ragged:
    """Make offsets that were changed after validation."""
    rows = Ragged.of([_WORDS] * 3)
    rows.offsets = np.array([0, 2, 4, 7])
    return rows


def _lists(kind: pa.DataType, *rows: list[Any] | None) -> pa.Array:
    return pa.array(list(rows), pa.list_(kind))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            lambda: Ragged.of([_WORDS]),
            r"batch of 3 rows .* row 'a'.*'input\.x' is a Ragged of 1 rows.*each row, 3",
        ),
        (lambda: ragged(_WORDS), r"row 'a'.*'input\.x' is marked with ragged\(\).*Ragged\.of"),
        (lambda: [_WORDS] * 3, r"builtins\.list.*Ragged\.of"),
        (lambda: _lists(pa.int64(), [1], None, []), "row 'b': field 'input.x' is null.*empty list"),
        (lambda: _lists(pa.int64(), [1], [], [2, None]), "row 'c': field 'input.x' has a null.*fill_null"),
        (lambda: _lists(pa.string(), ["x"], [], []), "lists of string.*lists of numbers"),
        (lambda: Ragged.of([np.array(["x"])] * 3), "dtype <U1"),
        (_broken, "'input.x' cannot be stored.*offsets"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(tmp_path: Path, words: Callable[[], Any], expected: str) -> None:
    """With the wrong row, or else the first row of the batch."""
    given = {"x": words()}
    with (
        ShardWriter(tmp_path, 0, start=0, stop=3, source=SOURCE, id_type=pa.string()) as writer,
        pytest.raises(RowError, match=expected),
    ):
        writer.add_batch(["a", "b", "c"], given, np.zeros(3))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_lists_of_arrow_are_rows(tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow lists need no conversion, also as slices."""
    lists = pa.array([[9.0], [1.0, 2.0], [], [3.0]], kind).slice(1)
    bools = pa.array([[], [True], [False, True]])
    with ShardWriter(tmp_path, 0, start=0, stop=3, source=SOURCE, id_type=pa.int64()) as writer:
        writer.add_batch([0, 1, 2], lists, bools)
        write_manifest(tmp_path, PartitionManifest.of(SOURCE, [writer.close()]))
    ((inputs, outputs),) = PartitionLoader([tmp_path], batch_size=3, seed=None)
    assert [row.tolist() for row in inputs] == [[1.0, 2.0], [], [3.0]]
    assert [row.tolist() for row in outputs] == [[], [True], [False, True]]
    assert (inputs.dtype, outputs.dtype) == (torch.float32, torch.bool)


def test_tensors_can_be_marked_as_ragged(tmp_path: Path) -> None:
    """Row functions may return tensors."""
    _write(tmp_path, [(ragged(torch.arange(length)), torch.tensor(1.0)) for length in (2, 0, 1)], [0, 3])
    ((inputs, _),) = PartitionLoader([tmp_path], batch_size=3, seed=None)
    assert [row.tolist() for row in inputs] == [[0, 1], [], [0]]


def test_ragged_batches_can_be_changed_and_reach_other_devices(tmp_path: Path) -> None:
    """Changing a batch changes no data. On another device the longest row is known without a copy."""
    _write(tmp_path, [(ragged(np.full(row, row)), row) for row in range(9)], [0, 4, 9])
    loader = PartitionLoader([tmp_path], batch_size=4, seed=None)
    for inputs, _ in list(loader):
        inputs.values.fill_(-1)
    assert next(inputs.values.tolist() for inputs, _ in loader) == [1, 2, 2, 3, 3, 3]
    batches = list(PartitionLoader([tmp_path], batch_size=4, seed=None, device="meta"))
    assert [inputs.values.device.type for inputs, _ in batches] == ["meta"] * 3
    assert [inputs.longest for inputs, _ in batches] == [3, 7, 8]


@pytest.mark.gpu
def test_ragged_batches_reach_a_gpu_unchanged(tmp_path: Path) -> None:
    """Values and offsets are copied from pinned memory; padding and indexing work as on the host."""
    _write(tmp_path, [(ragged(np.arange(row % 4)), row) for row in range(40)], [0, 25, 40])
    there, here = (
        list(PartitionLoader([tmp_path], batch_size=3, seed=1, device=device)) for device in ("cuda", "cpu")
    )
    for (rows, _), (expected, _) in zip(there, here, strict=True):
        assert rows.values.device.type == "cuda"
        assert [row.tolist() for row in rows] == [row.tolist() for row in expected]
        assert rows.padded(-1).tolist() == expected.padded(-1).tolist()
        assert rows[[-1, 0]].mask().tolist() == expected[[-1, 0]].mask().tolist()


def test_invalid_offsets_on_disk_are_found(tmp_path: Path) -> None:
    """A damaged shard raises, and no memory outside it is read."""
    manifest = _write(tmp_path, [(ragged(np.arange(length)), 1) for length in (3, 3)], [0, 2])
    path = tmp_path / manifest.shards[0].file
    content = path.read_bytes()
    offsets = np.array([0, 3, 6], np.int64).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 3, 1 << 40], np.int64).tobytes()))
    os.utime(path, ns=(0, 0))  # otherwise the checksum would find it
    with pytest.raises(ShardCorruptError, match=r"'input'.*preprocessed again"):
        list(PartitionLoader([tmp_path], batch_size=2, seed=None))


def test_partitions_of_ragged_and_other_rows_do_not_mix(tmp_path: Path) -> None:
    """Nor do ragged partitions with different entry shapes."""
    _write(tmp_path / "a", [(ragged(np.zeros((2, 3))), 1)], [0, 1])
    _write(tmp_path / "b", [(np.zeros((2, 3)), 1)], [0, 1])
    with pytest.raises(DataError, match=r"does not fit.*ragged in all rows"):
        MappedRows.open([tmp_path / "a", tmp_path / "b"])


def test_an_unknown_shape_is_refused() -> None:
    """A shape with any length in a later axis."""
    stored = Layout.of(flatten(1, ragged(np.zeros((2, 3))), None)).to_json()
    stored["fields"][0]["shape"] = [None, None]
    with pytest.raises(DataError, match="more than the first axis"):
        Layout.from_json(stored)


def test_merged_partitions_have_ragged_rows(tmp_path: Path) -> None:
    """Each worker reads its part of every batch; a single worker with all parts gets the same rows."""
    counts = [5, 8]
    folders = [tmp_path / str(number) for number in range(2)]
    for number, (folder, count) in enumerate(zip(folders, counts, strict=True)):
        rows = [(ragged(np.full(row, 10 * number + row)), 10 * number + row) for row in range(count)]
        _write(folder, rows, [0, 2, count])
    alone = MergedLoader(folders, batch_size=4, seeds=[1, 2])
    parts = [
        PartitionLoader([folder], batch_size=4, seed=1 + number, merged=Merged(rows=(5, 8), number=number))
        for number, folder in enumerate(folders)
    ]
    for (whole, numbers), *read in zip(alone, *parts, strict=True):
        assert [row.tolist() for row in whole] == [[number] * (number % 10) for number in numbers.tolist()]
        own = [
            (rows[:own], outputs[:own]) for (rows, outputs), own in zip(read, _own_rows(parts), strict=True)
        ]
        assert sorted(number for _, outputs in own for number in outputs.tolist()) == sorted(numbers.tolist())
        assert sum(len(rows.values) for rows, _ in own) == len(whole.values)


def _own_rows(loaders: Sequence[PartitionLoader]) -> list[int]:
    return [loader.counts[0] for loader in loaders]


def test_a_trial_and_a_technique_see_the_rows_of_a_batch(tmp_path: Path) -> None:
    """A trial reads them in another order; a dry run gives a technique single rows."""
    rows = [({"x": ragged(np.arange(row)), "y": np.float32(row)}, row) for row in range(5)]
    _write(tmp_path, rows, [0, 5])
    trial = LimitedLoader(
        MappedRows.open([tmp_path]), lambda handed: True, batch_size=5, seed=0, device="cpu", permuted=7
    )
    ((inputs, outputs),) = trial
    assert outputs.tolist() == trial.ids != [0, 1, 2, 3, 4]
    assert [row.tolist() for row in inputs["x"]] == [list(range(row)) for row in outputs.tolist()]
    ((inputs, outputs),) = PartitionLoader([tmp_path], batch_size=5, seed=None)
    again = [(row_of(inputs, row), row_of(outputs, row)) for row in range(5)]
    _write(tmp_path / "again", again, [0, 5])
    one, other = (next(each.glob("*.arrow")).read_bytes() for each in (tmp_path, tmp_path / "again"))
    assert one == other
