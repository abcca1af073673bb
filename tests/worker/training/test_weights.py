"""Weighted backward passes over shares add up to the batch's gradient and change nothing else in torch."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import RanksDifferError
from cerebro.worker.training.metrics import RankMetrics, of_ranks
from cerebro.worker.training.ranks.gradient_weights import weight, weighted


@given(st.lists(st.lists(st.floats(-10, 10), max_size=7), min_size=1, max_size=5).filter(any))
def test_weighted_means_average_to_the_mean_of_all(shares: list[list[float]]) -> None:
    """A share without rows gets a padding row of weight 0. Sums work too."""
    rows, ranks = sum(map(len, shares)), len(shares)
    every = [value for share in shares for value in share]
    means = [sum(share) / len(share) if share else 1e6 for share in shares]
    found = sum(weight(len(share), rows, ranks) * mean for share, mean in zip(shares, means, strict=True))
    assert found / ranks == pytest.approx(sum(every) / rows, abs=1e-9)
    sums = [sum(share) if share else 1e6 for share in shares]
    added = sum(weight(len(s), rows, ranks, "sum") * total for s, total in zip(shares, sums, strict=True))
    assert added / ranks == pytest.approx(sum(every), abs=1e-8)


@given(cuts=st.lists(st.integers(0, 12), max_size=3), seed=st.integers(0, 99))
def test_gradients_of_shares_average_to_the_gradient_of_the_batch(cuts: list[int], seed: int) -> None:
    """Covers `Tensor.backward` and `autograd.backward` with accumulated gradients."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(12, 3, generator=random, dtype=torch.float64)
    parameter = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad((rows @ parameter).square().mean(), parameter)
    shares = [rows[begin:end] for begin, end in pairwise([0, *sorted(cuts), 12])]
    for share in shares:
        lent = share if len(share) else rows[:1]
        loss = (lent @ parameter).square().mean()
        factor = weight(len(share), 12, len(shares))
        with weighted(partial(float, factor)):
            torch.autograd.backward([loss / 2, loss / 4], retain_graph=True)
            (loss / 4).backward()  # type: ignore[no-untyped-call]
            (torch.autograd.grad((lent @ parameter).sum(), parameter))  # is not weighted
    assert parameter.grad is not None
    assert torch.allclose(parameter.grad / len(shares), expected, rtol=1e-12)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=4))
def test_metrics_are_averaged_by_rows(found: list[tuple[float, int]]) -> None:
    """Sub-epochs of an epoch are averaged in the same way."""
    expected = sum(value * rows for value, rows in found) / sum(rows for _, rows in found)
    ranks = [RankMetrics({"loss": value}, rows, number) for number, (value, rows) in enumerate(found)]
    assert of_ranks(ranks)["loss"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([{"a": 1.0}, {"b": 2.0}], r"'a' on some ranks only \(rank 0 1.0, nothing on rank 1\)"),
        ([{}, {"b": 2.0}], r"'b' on some ranks only \(rank 1 2.0, nothing on rank 0\)"),
    ],
)
def test_metrics_that_only_some_ranks_return_are_refused(metrics: list[Any], message: str) -> None:
    """The error has the name, the ranks and their values."""
    with pytest.raises(RanksDifferError, match=message):
        of_ranks([RankMetrics(one, 5, number) for number, one in enumerate(metrics)])
