"""Ratio metrics equal those of all rows, for any split into sub-epochs, partitions and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import cerebro
from cerebro.contract.metrics import total
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import MetricError, NonFiniteMetricError
from cerebro.spec import PerRow, Ratio
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.sub_epochs import mean
from cerebro.state.tasks.task import Attempt
from cerebro.worker.training.metrics import (
    Measured,
    RankMetrics,
    checked_metrics,
    numbers_of,
    of_ranks,
    ratios_of,
    require_mergeable,
    split_per_row,
)

Row = tuple[bool, bool]
"""(predicted, true)."""

ROWS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


def counted(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the metrics of some rows as a user would."""
    predicted, true = np.array(rows, bool).reshape(-1, 2).T
    tp, fp, fn = (int(x.sum()) for x in (predicted & true, predicted & ~true, ~predicted & true))
    return {
        "f1": Ratio(2 * tp, 2 * tp + fp + fn),
        "precision": cerebro.Ratio(torch.tensor(tp), torch.tensor(tp + fp)),
        "recall": Ratio(np.int64(tp), np.int64(tp + fn)),
        "loss": float(fp + fn) / max(1, len(rows)),
    }


def cut(rows: Sequence[Row], at: Sequence[int]) -> list[Sequence[Row]]:
    """Cut rows at these positions, which may repeat."""
    places = [0, *sorted(min(place, len(rows)) for place in at), len(rows)]
    return [rows[begin:end] for begin, end in pairwise(places)]


def completed_sub_epoch(metrics: Measured, rows: int, partition: int) -> CompletedSubEpoch:
    """Return a logged sub-epoch with these metrics."""
    result = TaskResult(rows=rows, metrics=numbers_of(metrics), ratios=ratios_of(metrics))
    read = TaskResult.model_validate_json(result.model_dump_json())
    attempt = Attempt(number=1, worker="w0", assigned=0.0, started=0.0, ended=1.0)
    checkpoint = CheckpointRef(name="x", checksum="-", size=1)
    return CompletedSubEpoch.of(
        epoch=1, partition=partition, attempt=attempt, result=read, checkpoint=checkpoint
    )


@given(
    ROWS,
    st.lists(st.integers(0, 40), max_size=4),
    st.lists(st.integers(0, 12), max_size=3),
    st.integers(1, 2),
)
def test_ratios_of_an_epoch_count_all_rows(
    rows: list[Row], sub_epochs: list[int], ranks: list[int], copies: int
) -> None:
    """The counts are exact, also if several ranks read the same share."""
    completed_sub_epochs = []
    for number, sub_epoch in enumerate(part for part in cut(rows, sub_epochs) if part):
        found = [
            RankMetrics(checked_metrics(counted(share), "train", "here"), len(share), index)
            for index, share in enumerate(cut(sub_epoch, ranks))
            for _ in range(copies)
        ]
        completed_sub_epochs.append(completed_sub_epoch(of_ranks(found), len(sub_epoch), number))
    expected = {name: each.value for name, each in counted(rows).items() if isinstance(each, Ratio)}
    assert {name: value for name, value in mean(completed_sub_epochs).items() if name != "loss"} == expected
    assert mean(completed_sub_epochs)["loss"] == pytest.approx(counted(rows)["loss"])


TERM = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(TERM, TERM), max_size=6))
@example([(1.7e308, 1e308)] * 2)
@example([(1.7e308, 1.0), (-1.7e308, 1.0), (1.7e308, 1.0)])
@example([(math.inf, 1.0), (-math.inf, 1.0)])
def test_any_terms_of_a_log_can_be_merged(ratios: list[tuple[float, float]]) -> None:
    """Terms are finite with denominators of at least 0, and the mean is weighted."""
    found = total(ratios).value
    if not all(math.isfinite(above) and math.isfinite(below) and below >= 0 for above, below in ratios):
        return
    above, below = (sum((Fraction(each[term]) for each in ratios), Fraction()) for term in (0, 1))
    if below > 1e-300 and abs(above / below) < 1e300:
        assert found == pytest.approx(float(above / below), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"x" * 5_000_000: 1.0}, "names a metric 'xxx.*expected 1 to 200 characters"),
        ({"": 1.0}, "expected 1 to 200 characters"),
        ({1: 1.0}, r"names a metric 1 \(int\), expected text"),
        ({None: 1.0}, r"names a metric None \(NoneType\)"),
        ({"a\nb": 1.0}, "that can be shown"),
        ({f"m{number}": 1.0 for number in range(1001)}, "1001 metrics, expected at most 1000"),
    ],
)
def test_names_and_numbers_of_metrics_are_bounded(metrics: dict[Any, float], message: str) -> None:
    """The log stores them for each sub-epoch. Error messages are bounded too."""
    with pytest.raises(MetricError, match=f"(?s){message}") as caught:
        checked_metrics(metrics, "train", "here")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "values", [torch.tensor([True, False, True]), np.array([1, 0, 1]), [1.0, 0.0, 1.0], (1, 0, 1)]
)
def test_a_metric_per_row_is_its_mean(values: Any) -> None:
    """Other metrics stay as they are, and the values are kept as float64."""
    metrics, per_row = split_per_row({"accuracy": PerRow(values), "loss": 0.5}, 3)
    assert metrics == {"accuracy": 2 / 3, "loss": 0.5}
    assert per_row["accuracy"].dtype == np.float64
    assert per_row["accuracy"].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.0, 0.0], MetricError, "2 values of 'm' for 3 rows: return one per row"),
        ([], MetricError, "0 values of 'm' for 3 rows"),
        (np.ones((3, 1)), MetricError, r"ndarray of shape \(3, 1\) as the values per row of 'm'"),
        (1.0, MetricError, "a float as the values per row of 'm'"),
        (["a", "b", "c"], MetricError, "a list as the values per row of 'm'"),
        ([[1.0], [1.0, 2.0], [3.0]], MetricError, "a list as the values per row of 'm'"),
        (np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]), MetricError, "masked values of 'm'"),
        ([1e308] * 3, MetricError, r"values of 'm' whose sum exceeds 1e\+300: divide them"),
        ([1e300, -1e300, 0.0], MetricError, "values of 'm' whose sum exceeds"),
        ([1.0, float("nan"), float("inf")], NonFiniteMetricError, "m is NaN or infinite for 2 of 3 rows"),
    ],
)
def test_invalid_values_per_row_are_refused(values: Any, error: type[Exception], message: str) -> None:
    """The error names the metric, and both lengths if they differ."""
    with pytest.raises(error, match=message):
        split_per_row({"m": PerRow(values)}, 3)


def test_train_returns_no_values_per_row() -> None:
    """Only the rows of a test are compared."""
    with pytest.raises(MetricError, match=r"train\(\) returned a PerRow for 'm', expected one number"):
        checked_metrics({"m": PerRow([1.0])}, "train", "here")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), 0.10000000149011612),
        (np.array([[2]]), 2.0),
        (np.ma.array([1.5], mask=[False]), 1.5),
        (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
        (torch.tensor(True), 1.0),
        (np.longdouble(0.5), 0.5),
        (2**53, 2.0**53),
    ],
)
def test_scalars_of_all_libraries_are_metrics(value: Any, expected: float) -> None:
    """Their values are unchanged."""
    assert checked_metrics({"m": value}, "test", "here") == {"m": expected}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ma.masked, "a masked value for 'm'"),
        (np.ma.array([1.0], mask=[True]).mean(), "a masked value for 'm'"),
        (np.ma.array([1.0], mask=[True]), "a masked value for 'm'"),
        (Ratio(np.ma.masked, 1), "a masked value for 'the numerator of m'"),
        (2**53 + 1, "9007199254740993 for 'm', which float64 cannot hold exactly"),
        (np.int64(2**53 + 1), "9007199254740993 for 'm', which float64"),
        (np.uint64(2**64 - 1), "18446744073709551615 for 'm', which float64"),
        (torch.tensor(2**53 + 1), "9007199254740993 for 'm', which float64"),
        (Fraction(1, 3), r"Fraction\(1, 3\) for 'm', which float64"),
        (np.longdouble(1) / 3, "for 'm', which float64"),
        (Decimal("0.1"), "a Decimal for 'm', expected one number"),
        (np.complex64(1), "a complex64 .*for 'm', expected one number"),
        (torch.tensor(1j), "a Tensor .*for 'm', expected one number"),
        (np.datetime64("2024-01-01", "ns"), "a datetime64 .*for 'm', expected one number"),
        (np.timedelta64(1, "s"), "a timedelta64 .*for 'm', expected one number"),
        (np.array(["1.5"]), "a ndarray .*for 'm', expected one number"),
        ("1.5", "a str for 'm', expected one number"),
        (None, "a NoneType for 'm', expected one number"),
    ],
)
def test_values_that_are_no_exact_number_are_refused(value: Any, message: str) -> None:
    """A masked value would count as 0.0 and win with mode="min"."""
    with pytest.raises(MetricError, match=message):
        checked_metrics({"m": value}, "test", "here")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (Ratio(1, -1), MetricError, r"1.0 / -1.0 for 'f1', expected a denominator above 0"),
        (Ratio(1, 0), MetricError, "nothing to count"),
        (Ratio(1.7e308, 1e308), MetricError, r"1.7e\+308 / 1e\+308 for 'f1', expected terms up to 1e\+300"),
        (
            Ratio(float("nan"), 2),
            NonFiniteMetricError,
            "f1 became nan, as nan / 2.0, in here.* for NaN",
        ),
        (Ratio(1e300, 1e-300), NonFiniteMetricError, "f1 became inf"),
        (Ratio(np.ones(2), 2), MetricError, r"ndarray of shape \(2,\) for 'the numerator of f1'"),
        (Ratio(1, "2"), MetricError, "a str for 'the denominator of f1'"),
        (np.ones(3), MetricError, r"ndarray of shape \(3,\) for 'f1', expected one number or cerebro.Ratio"),
        ("0.5", MetricError, "a str for 'f1', expected one number"),
        ([1, 2], MetricError, "a list for 'f1'"),
    ],
)
def test_invalid_metrics_are_refused(value: Any, error: type[Exception], message: str) -> None:
    """The error has the name, the value's type and the expected one."""
    with pytest.raises(error, match=message):
        checked_metrics({"f1": value}, "test", "here")


@pytest.mark.parametrize(
    ("metrics", "merges", "message"),
    [
        (
            {"f1": 0.5, "loss": 1.0},
            {"f1": True},
            r"'f1' of model m03 is a number in epoch 2, .* was a ratio before",
        ),
        (
            {"f1": Ratio(1, 2), "loss": 1.0},
            {"f1": False},
            "is a ratio in .* was a number before .*: return it always",
        ),
        (
            {"auc": 0.5},
            {"loss": False},
            "metric 'loss' of model m03 is missing in .* train.. returned: auc. It ranks",
        ),
    ],
)
def test_metrics_that_cannot_be_merged_are_refused(
    metrics: Measured, merges: dict[str, bool], message: str
) -> None:
    """The error names the model and the remedy. A missing ranking metric is refused too."""
    with pytest.raises(MetricError, match=message):
        require_mergeable(metrics, merges, ("loss",), "m03", "epoch 2, partition 1")


@pytest.mark.parametrize("merges", [{}, {"loss": False, "grad_norm": False, "auc": True}])
def test_metrics_of_only_some_sub_epochs_are_omitted(merges: dict[str, bool]) -> None:
    """The epoch omits them."""
    require_mergeable({"loss": 1.0, "accuracy": 0.5}, merges, ("loss",), "m03", "here")
    require_mergeable({}, merges, (), "m03", "here")
    assert mean(
        [
            completed_sub_epoch({"loss": 1.0, "x": 2.0}, 1, 0),
            completed_sub_epoch({"loss": 1.0, "f1": Ratio(1, 2)}, 1, 1),
        ]
    ) == {"loss": 1.0}
