"""Warnings about a data set: real problems always warn, chance almost never does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from cerebro.data.fields import Field, Layout
from cerebro.data.statistics.data import DataStatistics, ShardObserver
from cerebro.data.statistics.observation import observe_metadata
from cerebro.figures.data.comparison import summarize
from cerebro.figures.data.homogeneity import chi_square_tail, compare_partitions
from cerebro.figures.data.summary import DataSummary

Columns = dict[str, npt.NDArray[Any]]


def partition(columns: Columns) -> DataStatistics:
    fields = tuple(Field(name=name, dtype=str(v.dtype), shape=v.shape[1:]) for name, v in columns.items())
    observer = ShardObserver(len(next(iter(columns.values()))))
    observer.observe(Layout(fields=fields, structure={}, first_id=0), list(columns.values()))
    found = observer.result()
    assert found is not None
    return found


def cut(columns: Columns, order: npt.NDArray[np.int64], partitions: int) -> list[DataStatistics]:
    return [partition({n: v[rows] for n, v in columns.items()}) for rows in np.array_split(order, partitions)]


def kinds(summary: DataSummary) -> list[str]:
    return [warning.kind for warning in summary.warnings]


def sample(random: np.random.Generator, rows: int) -> Columns:
    """Numbers with and without heavy tails, images and unbalanced labels."""
    shares = random.dirichlet(np.full(20, 0.3))
    return {
        "input.a": random.lognormal(size=rows),
        "input.b": random.normal(size=(rows, 5)).astype(np.float32),
        "input.c": random.standard_cauchy(rows),
        "output": random.choice(20, rows, p=shares),
    }


def false_alarms(repeats: int) -> int:
    random, alarms = np.random.default_rng(7), 0
    for _ in range(repeats):
        rows, partitions = int(random.choice([60, 500, 2000])), int(random.choice([2, 4, 16]))
        summary = summarize({"train": cut(sample(random, rows), random.permutation(rows), partitions)})
        alarms += "partitions" in kinds(summary)
    return alarms


def test_shuffled_rows_rarely_warn() -> None:
    """At most 5 % of data sets warn, over all columns, sizes and numbers of partitions."""
    assert false_alarms(40) <= 2


@pytest.mark.slow
def test_shuffled_rows_rarely_warn_in_many_data_sets() -> None:
    """As above, with 600 data sets."""
    assert false_alarms(600) <= 30


@pytest.mark.parametrize("rows", [60, 500, 3000])
@pytest.mark.parametrize("partitions", [2, 4])
def test_sorted_rows_always_warn(rows: int, partitions: int) -> None:
    """Sorted labels and sorted numbers; the warning names the split and the column."""
    random = np.random.default_rng(rows)
    for values in (random.normal(size=rows), random.integers(0, 4, rows)):
        summary = summarize({"train": cut({"input": values}, np.argsort(values), partitions)})
        text = next(warning.text for warning in summary.warnings if warning.kind == "partitions")
        assert "partitions of train differ in field 'input'" in text
        assert "or the group of run_etl(), which decide the partition" in text


def test_tiny_differences_of_many_rows_do_not_warn() -> None:
    """A significant difference without an effect is no warning."""
    counts = [[500_000, 500_000], [503_000, 497_000]]
    difference = compare_partitions(counts)
    assert difference is not None
    assert difference.p_value < 1e-4
    assert difference.effect < 0.01


@pytest.mark.parametrize(
    ("statistic", "freedom", "expected"),
    [(3.841459, 1, 0.05), (11.07050, 5, 0.05), (29.58830, 10, 0.001), (124.3421, 100, 0.05), (0.0, 3, 1.0)],
)
def test_the_tail_of_chi_square(statistic: float, freedom: int, expected: float) -> None:
    """Values of printed tables."""
    assert chi_square_tail(statistic, freedom) == pytest.approx(expected, rel=1e-4)


def test_rows_in_two_splits_warn() -> None:
    """Copies across splits always warn, repetitions inside one from 1 %; distinct rows never."""
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    train = [partition({"input": rows[:400]}), partition({"input": rows[400:800]})]
    assert "duplicates" not in kinds(summarize({"train": train, "valid": [partition({"input": rows[800:]})]}))
    leaked = summarize({"train": train, "valid": [partition({"input": rows[797:]})]})
    assert [w.text for w in leaked.warnings if w.kind == "duplicates"] == [
        "3 rows of valid (1.48%) have the input of a row of train. Remove them, or scores are too good"
    ]
    repeated = summarize({"train": [*train, partition({"input": rows[:50]})]})
    assert "50 rows of train (5.88%)" in repeated.warnings[0].text


def test_duplicates_in_a_sample_are_estimated() -> None:
    """Large partitions keep a sample of hashes, the same one on both sides."""
    rows = np.arange(200_000)
    found = summarize(
        {"train": [partition({"input": rows})], "valid": [partition({"input": rows[190_000:] + 5000})]}
    )
    text = found.warnings[0].text
    assert text.startswith("about ")
    assert int(text.split()[1].replace(",", "")) == pytest.approx(5000, rel=0.1)


def part(values: dict[str, Any]) -> DataStatistics:
    """Return the statistics of a partition's metadata."""
    batch = pa.record_batch(values)
    return DataStatistics(columns=tuple(observe_metadata([batch], name) for name in values))


def test_a_sample_of_metadata_is_not_called_constant() -> None:
    """Another value between the sampled rows would be missed. Ranges of fields are of all rows."""
    texts, numbers = np.full(20_000, "x"), np.ones(20_000)
    texts[1], numbers[1] = "y", 2.0
    summary = summarize({"train": [part({"text": pa.array(texts), "number": pa.array(numbers)})]})
    assert kinds(summary) == []
    assert "constant" in kinds(summarize({"train": [partition({"output": np.ones(20_000)})]}))


def test_missing_values_of_rows_to_predict_do_not_warn() -> None:
    """Their labels are unknown by design, and so is their absence of missing values no evidence."""
    lacking, full = part({"age": pa.nulls(100, pa.int64())}), part({"age": [1, 2] * 50})
    assert "missing" not in kinds(summarize({"train": [full], "predict": [lacking]}))
    assert "missing" not in kinds(summarize({"train": [part({"age": [None, 1] * 50})], "predict": [full]}))
    assert "missing" in kinds(summarize({"train": [lacking], "valid": [full], "predict": [lacking]}))


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (np.array([1000001, 1000002]), ["1000001", "1000002"]),
        (np.array([0.5, 1234567.5]), ["0.5", "1234567.5"]),
        (np.array([0.1, 1.0000001], np.float32), ["0.1", "1.0000001"]),
        (np.array([-0.0, -3.0]), ["-3", "0"]),
    ],
)
def test_different_numbers_have_different_labels(values: npt.NDArray[Any], labels: list[str]) -> None:
    """Integers are exact, and others have the digits that they need."""
    (column,) = summarize({"train": [partition({"output": values})]}).columns
    assert [each.label for each in column.splits[0].bins] == labels


def test_constant_and_missing_columns_warn() -> None:
    """Constant columns, columns without values, and missing values in one split only."""
    train = {"same": ["x"] * 100, "none": pa.nulls(100), "age": [None] * 30 + [1, 2] * 35}
    valid = {"same": ["x"] * 100, "none": pa.nulls(100), "age": [1, 2] * 50}
    summary = summarize({"train": [part(train)], "valid": [part(valid)]})
    assert [(w.kind, w.column) for w in summary.warnings] == [
        ("constant", "same"),
        ("constant", "none"),
        ("missing", "age"),
    ]
    assert summary.sentence().startswith("Data warning: only train has missing values in column 'age'")
    assert summarize({"train": [part({"same": ["x"] * 100})]}).sentence() == ""
    rare = {**valid, "age": [None] + [1, 2] * 49 + [1]}
    assert "missing" not in kinds(summarize({"train": [part(rare)], "valid": [part(valid)]}))


def test_a_summary_has_the_distribution_of_each_split_and_partition() -> None:
    """All splits and partitions share the bins of a column."""
    train = [partition({"output": np.array([0, 1, 1, 2])}), partition({"output": np.array([1, 1])})]
    summary = summarize({"train": train, "valid": [partition({"output": np.array([2, 2])})]})
    (column,) = summary.columns
    first, second = column.splits
    assert [(each.label, round(each.share, 2)) for each in first.bins] == [
        ("0", 0.17),
        ("1", 0.67),
        ("2", 0.17),
    ]
    assert first.partitions == ((0.25, 0.5, 0.25), (0.0, 1.0, 0.0))
    assert [each.share for each in second.bins] == [0.0, 0.0, 1.0]
    assert first.frequent[0].label == "1"
    assert DataSummary.model_validate_json(summary.model_dump_json()) == summary


def test_a_summary_of_many_partitions_is_bounded() -> None:
    """All partitions are compared; the first ones have distributions."""
    train = [partition({"output": np.array([0, 1] * 20)}) for _ in range(40)]
    (split,) = summarize({"train": train}).columns[0].splits
    assert (len(split.partitions), split.omitted, split.rows) == (16, 24, 1600)
