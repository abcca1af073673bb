"""Statistics of columns and hashes of rows: the same for all cuts into shards, bounded, and equal after JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data.fields import Field, Layout
from cerebro.data.statistics.columns import ColumnStatistics
from cerebro.data.statistics.data import DataStatistics, ShardObserver, merge_all
from cerebro.data.statistics.observation import observe_metadata
from cerebro.data.statistics.row_hashes import MAX_HASHES, RowHashes, first_level, hashes_of
from cerebro.errors import DataError


def observed(columns: dict[str, Any]) -> DataStatistics:
    """Return the statistics of a shard with these fixed columns."""
    rows = len(next(iter(columns.values())))
    fields = tuple(
        Field(name=name, dtype=str(values.dtype), shape=values.shape[1:]) for name, values in columns.items()
    )
    observer = ShardObserver(rows)
    observer.observe(Layout(fields=fields, structure={}, first_id=0), list(columns.values()))
    found = observer.result()
    assert found is not None
    return found


def metadata_column(values: Any) -> ColumnStatistics:
    batch = pa.record_batch({"c": values})
    return observe_metadata([batch], "c")


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=2, max_size=60), st.data())
def test_shards_merge_to_the_statistics_of_all_rows(values: list[float], data: st.DataObject) -> None:
    """Counts, ranges and histograms are equal; the mean and the deviation up to rounding."""
    cut = data.draw(st.integers(1, len(values) - 1))
    array = np.array(values)
    whole = observed({"input": array})
    merged = merge_all([observed({"input": array[:cut]}), observed({"input": array[cut:]})])
    assert merged.hashes == whole.hashes
    (one,), (other,) = whole.columns, merged.columns
    assert (one.rows, one.missing, one.low, one.high) == (other.rows, other.missing, other.low, other.high)
    assert one.histogram == other.histogram
    assert other.mean == pytest.approx(one.mean, abs=1e-6)
    assert other.deviation == pytest.approx(one.deviation, abs=1e-3)
    assert DataStatistics.from_json(merged.to_json()) == merged


def test_arrays_have_the_mean_of_their_elements() -> None:
    """The range is of all elements; a row with NaN is missing, one with infinity is infinite."""
    images = np.array([[[0, 2], [4, 6]], [[1, 1], [1, 1]], [[1, np.nan], [0, 0]], [[9, np.inf], [0, 0]]])
    (column,) = observed({"input": images.astype(np.float32)}).columns
    assert (column.kind, column.shape, column.low, column.high) == ("array", (2, 2), 0.0, 9.0)
    assert (column.rows, column.missing, column.infinite, column.counted) == (4, 1, 1, 2)
    assert (column.mean, column.deviation) == (2.0, 1.0)


def test_ragged_fields_have_their_lengths() -> None:
    """The value of a row is the number of its entries; equal rows have equal hashes."""
    field = Field(name="input", dtype="int64", shape=(None,))
    observer = ShardObserver(3)
    observer.observe(
        Layout(fields=(field,), structure={}, first_id=0), [(np.array([0, 2, 2, 4]), np.array([7, 8, 7, 8]))]
    )
    found = observer.result()
    assert found is not None
    assert (found.columns[0].low, found.columns[0].high, found.columns[0].kind) == (0.0, 2.0, "ragged")
    _, counts = found.hashes.at_level(0)
    assert sorted(counts) == [1, 2]


@pytest.mark.parametrize(
    ("values", "kind", "missing", "distinct"),
    [
        (pa.array(["a", None, "b", "a"]), "text", 1, 2),
        (pa.array(["a", "b"]).dictionary_encode(), "text", 0, 2),
        (pa.array(["x" * 2_000_000, "y"]), "text", 0, None),
        (pa.array([f"{n}" for n in range(1000)]), "text", 0, None),
        (pa.array([1, None, 3]), "number", 1, 2),
        (pa.array([True, False, None]), "number", 1, 2),
        (pa.array([1.0, float("nan"), float("inf")]), "number", 1, 1),
        (pa.array([None, None]), "other", 2, 0),
        (pa.array([[1], None, [2, 3]]), "other", 1, 0),
        (pa.array([{"a": 1}]), "other", 0, 0),
        (pa.array([b"1"]), "other", 0, 0),
    ],
)
def test_metadata_columns_of_all_types(values: Any, kind: str, missing: int, distinct: int | None) -> None:
    """Columns without numbers or texts count missing values only; huge or many texts are not counted."""
    column = metadata_column(values)
    assert (column.kind, column.missing, column.rows, column.distinct) == (
        *(kind, missing, len(values)),
        distinct,
    )
    assert DataStatistics.from_json(DataStatistics(columns=(column,)).to_json()).columns == (column,)


def test_a_column_of_nulls_takes_the_kind_of_the_others() -> None:
    """A partition without values changes the number of missing values only; other kinds have no common values."""
    empty, texts = metadata_column(pa.array([None, None])), metadata_column(pa.array(["a"]))
    merged = ColumnStatistics.merge([empty, texts])
    assert (merged.kind, merged.missing, merged.texts) == ("text", 2, {"a": 1})
    mixed = ColumnStatistics.merge([texts, metadata_column(pa.array([1]))])
    assert (mixed.kind, mixed.counted, mixed.rows) == ("other", 0, 2)


def test_ten_thousand_columns_are_bounded() -> None:
    """The first columns have statistics, the others are counted."""
    found = observed({f"input.{n}": np.array([float(n), 1.0]) for n in range(10_000)})
    assert (len(found.columns), found.omitted, found.hashes.rows) == (200, 9800, 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_samples_of_hashes_do_not_depend_on_the_cut(seed: int, cuts: int) -> None:
    """Parts of a large set of rows merge to the bounded hashes of the whole."""
    hashes = np.random.default_rng(seed).integers(0, 2**64 - 1, 3 * MAX_HASHES, np.uint64)
    whole = RowHashes.of(hashes)
    assert len(whole.hashes) <= 8 * MAX_HASHES
    assert RowHashes.merge([RowHashes.of(part) for part in np.array_split(hashes, cuts)]) == whole
    assert whole.level == first_level(len(hashes)) + (len(hashes) > MAX_HASHES << first_level(len(hashes)))


@pytest.mark.parametrize("width", [1, 3, 39, 200])
def test_equal_rows_have_equal_hashes_and_others_do_not(width: int) -> None:
    """For narrow and wide rows; a sample of a level has the hashes below its limit."""
    rows = np.random.default_rng(width).integers(0, 5, (2000, width)).astype(np.float32)
    hashes = hashes_of([rows, rows[:, :1].copy()], [])
    assert len(np.unique(hashes)) == len(np.unique(rows, axis=0))
    assert (hashes_of([rows, rows[:, :1].copy()], [], 2) == hashes[hashes < np.uint64(1 << 62)]).all()


def test_large_partitions_sample_rows_of_some_shards() -> None:
    """The number of sampled rows stays the same; ranges and missing values are of all rows."""
    fields = (Field(name="input", dtype="float64", shape=()),)
    layout = Layout(fields=fields, structure={}, first_id=0)
    parts = []
    for index in range(64):
        observer = ShardObserver(64 * 4096, index)
        values = np.arange(4096.0) + index
        values[7] = np.nan
        observer.observe(layout, [values])
        found = observer.result()
        assert found is not None
        parts.append(found)
    (column,) = merge_all(parts).columns
    assert 8000 < column.counted <= 16_384
    assert (column.rows, column.missing, column.low, column.high) == (64 * 4096, 64, 0.0, 4158.0)


def test_very_large_numbers_of_partitions_merge() -> None:
    """Sentinels such as the largest float64: a mean or deviation that overflows is 0, as in one partition."""
    largest = np.finfo(np.float64).max
    parts = [
        observed({"input": np.array(values)}) for values in ([largest, largest], [-largest, 1.0], [1e200])
    ]
    for some in (parts[:2], parts[1:], parts):
        (column,) = merge_all(some).columns
        assert np.isfinite([column.mean, column.deviations]).all()
        assert column.rows == sum(part.columns[0].rows for part in some)


def test_rows_of_a_first_ragged_field_are_counted() -> None:
    """In each batch, whatever its number of rows."""
    fields = (
        Field(name="input", dtype="int64", shape=(None,)),
        Field(name="output", dtype="int64", shape=()),
    )
    observer = ShardObserver(7)
    for rows in (4, 3):
        ragged = (np.arange(rows + 1), np.arange(rows))
        observer.observe(Layout(fields=fields, structure={}, first_id=0), [ragged, np.arange(rows)])
    found = observer.result()
    assert found is not None
    assert found.hashes.rows == 7


def test_an_error_while_counting_ends_the_statistics_only(caplog: pytest.LogCaptureFixture) -> None:
    """The shard has none, and the log says why."""
    observer = ShardObserver(2)
    layout = Layout(fields=(Field(name="input", dtype="float64", shape=()),), structure={}, first_id=0)
    observer.observe(layout, [np.array([1.0, 2.0])])
    observer.observe(layout, [np.array(["no", "numbers"])])
    observer.observe(layout, [np.array([3.0])])
    assert observer.result() is None
    assert "a shard has no statistics" in caplog.text


def test_float16_has_the_statistics_of_float32() -> None:
    """In metadata and in fields of several blocks, with NaN and infinity."""
    values = np.linspace(-1, 1, 600_000).astype(np.float16).reshape(300_000, 2)
    values[7, 0], values[8, 1], values[299_999, 1] = np.nan, np.inf, 2.0
    (half,), (single,) = (observed({"input": each}).columns for each in (values, values.astype(np.float32)))
    assert replace(half, type="float32") == single
    assert (half.missing, half.infinite, half.low, half.high) == (1, 1, -1.0, 2.0)
    column = metadata_column(pa.array(np.array([1, np.nan, np.inf, 3], np.float16)))
    assert (column.missing, column.infinite, column.low, column.high) == (1, 1, 1.0, 3.0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64"])
@pytest.mark.parametrize("values", [(1,), (2,), (2, 2)])
def test_samples_of_one_hot_rows_have_the_expected_size(dtype: str, values: tuple[int, ...]) -> None:
    """The part of a hash that decides depends on the positions of equal values."""
    width = 512 // np.dtype(dtype).itemsize
    rows = np.zeros((width - 1, width), dtype)
    for at in range(width - 1):
        rows[at, at : at + len(values)] = values
    upper = hashes_of([rows], []) >> np.uint64(32)
    assert len(np.unique(upper)) == len(rows)
    top = np.bincount((upper >> np.uint64(31)).astype(np.int64), minlength=2)
    assert top.min() > 0.25 * len(rows)


def test_damaged_statistics_are_refused() -> None:
    """The error says what to do."""
    with pytest.raises(DataError, match="run the ETL again"):
        DataStatistics.from_json(b'{"version": 1}')
