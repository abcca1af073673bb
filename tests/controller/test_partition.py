"""Division of rows among workers: complete, in proportion, and shuffled by seed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.base import SPLITS
from controller.preparation.partition import cut, row_keys, rows_in_use, shares

weights = st.lists(st.one_of(st.integers(1, 8).map(float), st.floats(0.01, 100)), min_size=1, max_size=9)


@given(rows=st.integers(0, 10_000), weights=weights)
def test_shares_sum_to_the_rows(rows: int, weights: list[float]) -> None:
    """Each row is counted once, and no share is negative."""
    counts = shares(rows, weights)
    assert sum(counts) == rows
    assert len(counts) == len(weights)
    assert min(counts) >= 0


@given(rows=st.integers(0, 10_000), weights=weights)
def test_each_worker_gets_a_row_if_there_are_enough(rows: int, weights: list[float]) -> None:
    """This includes workers with a tiny weight; a worker without a partition would never be trained."""
    if rows >= len(weights):
        assert min(shares(rows, weights)) >= 1


@given(rows=st.integers(0, 10_000), weights=weights)
def test_shares_are_in_proportion(rows: int, weights: list[float]) -> None:
    """Shares are exact within a row, apart from the minimum for the smallest."""
    counts = shares(rows, weights)
    exact = [rows * weight / sum(weights) for weight in weights]
    lifted = sum(1 for value in exact if value < 1)
    for count, value in zip(counts, exact, strict=True):
        assert value - 1 - lifted <= count <= max(value, 1) + 1


@given(lengths=st.lists(st.integers(1, 60), max_size=8), weights=weights, fraction=st.floats(0.001, 1))
def test_a_division_neither_loses_nor_duplicates_rows(
    lengths: list[int], weights: list[float], fraction: float
) -> None:
    """The parts together are the first rows of the order, for any sequence of input lengths."""
    rows = sum(lengths)
    counts = shares(min(rows, rows_in_use(rows, fraction)), weights)
    pieces: list[list[int]] = [[] for _ in counts]
    start = 0
    for length in lengths:
        for worker, part in cut(start, length, counts):
            pieces[worker] += range(rows)[start : start + length][part]
        start += length
    assert [row for piece in pieces for row in piece] == list(range(sum(counts)))
    assert [len(piece) for piece in pieces] == counts


def order(seed: int, split: str = "train") -> list[int]:
    """Return 2,000 row numbers in shuffled order."""
    keys = row_keys([str(number).encode() for number in range(2000)], seed=seed, split=split)
    found: list[int] = np.argsort(keys).tolist()
    return found


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_splits_are_shuffled_independently(one: str, other: str) -> None:
    """All splits share one seed but not one order."""
    first, second = order(1, one), order(1, other)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert abs(np.corrcoef(first, range(2000))[0, 1]) < 0.1
