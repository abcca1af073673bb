"""How rows are shared out: all of them, in proportion, at random but by seed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.base import SPLITS
from controller.partition import cut, sample, shares

weights = st.lists(st.one_of(st.integers(1, 8).map(float), st.floats(0.01, 100)), min_size=1, max_size=9)


@given(rows=st.integers(0, 10_000), weights=weights)
def test_shares_sum_to_the_rows(rows: int, weights: list[float]) -> None:
    """Every row goes to somebody, once; nobody gets a negative share."""
    counts = shares(rows, weights)
    assert sum(counts) == rows
    assert len(counts) == len(weights)
    assert min(counts) >= 0


@given(rows=st.integers(0, 10_000), weights=weights)
def test_nobody_is_empty_when_there_are_enough_rows(rows: int, weights: list[float]) -> None:
    """However small a weight: a worker without a partition would never be visited."""
    if rows >= len(weights):
        assert min(shares(rows, weights)) >= 1


@given(rows=st.integers(0, 10_000), weights=weights)
def test_shares_are_in_proportion(rows: int, weights: list[float]) -> None:
    """To within a row, but for what the smallest are given so as not to be empty."""
    counts = shares(rows, weights)
    exact = [rows * weight / sum(weights) for weight in weights]
    lifted = sum(1 for value in exact if value < 1)
    for count, value in zip(counts, exact, strict=True):
        assert value - 1 - lifted <= count <= max(value, 1) + 1


def test_equal_weights_share_equally() -> None:
    """The rows that do not divide go to the first workers, one each."""
    assert shares(11, [1.0, 1.0, 1.0]) == [4, 4, 3]
    assert shares(9, [1.0, 2.0]) == [3, 6]
    assert shares(4, [1000.0, 1.0, 1.0]) == [2, 1, 1]
    assert shares(2, [1.0, 1.0, 1.0]) == [1, 1, 0]


@given(rows=st.integers(0, 500), weights=weights, seed=st.integers(0, 3))
def test_a_cut_loses_and_doubles_no_row(rows: int, weights: list[float], seed: int) -> None:
    """For every size from 0 up: the pieces together are the order, piece by piece."""
    order = list(np.random.default_rng(seed).permutation(rows))
    pieces = cut(order, {f"worker-{n}": weight for n, weight in enumerate(weights)})
    assert [row for piece in pieces.values() for row in piece] == order
    assert [len(piece) for piece in pieces.values()] == shares(rows, weights)


@given(rows=st.integers(1, 500), fraction=st.floats(0.001, 1), seed=st.integers(0, 99))
def test_a_sample_is_a_fraction_without_doubles(rows: int, fraction: float, seed: int) -> None:
    """At least one row, the stated share to within one, all of them for fraction 1."""
    order = sample(rows, fraction=fraction, seed=seed, split="train")
    assert len(set(order)) == len(order) == max(1, round(rows * fraction))
    assert set(order) <= set(range(rows))
    assert sorted(sample(rows, fraction=1.0, seed=seed, split="train")) == list(range(rows))


def test_the_seed_decides_the_sample() -> None:
    """The same seed draws the same rows, another seed others; a smaller fraction is a part of a larger."""
    first = sample(1000, fraction=0.5, seed=1, split="train")
    assert first == sample(1000, fraction=0.5, seed=1, split="train")
    assert first != sample(1000, fraction=0.5, seed=2, split="train")
    assert sample(1000, fraction=0.1, seed=1, split="train") == first[:100]


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_splits_are_shuffled_independently(one: str, other: str) -> None:
    """One seed for all splits does not mean one order for all."""
    first = sample(2000, fraction=1.0, seed=1, split=one)
    second = sample(2000, fraction=1.0, seed=1, split=other)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert abs(np.corrcoef(first, range(2000))[0, 1]) < 0.1
