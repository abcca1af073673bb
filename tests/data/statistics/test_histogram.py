"""Histograms of parts merge to exactly the histogram of the whole."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data.statistics.histogram import MAX_BINS, Histogram

numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=64),
    st.floats(-100, 100),
    st.integers(-300, 300).map(float),
)
parts = st.lists(st.lists(numbers, max_size=300), min_size=1, max_size=4)


@given(parts)
def test_merging_parts_gives_the_histogram_of_the_whole(values: list[list[float]]) -> None:
    """The order of the numbers and of the merges does not matter."""
    whole = Histogram.of(np.array(list(chain.from_iterable(values)), np.float64))
    found = [Histogram.of(np.array(part, np.float64)) for part in values]
    assert Histogram.merge(found) == whole
    assert Histogram.merge([Histogram.merge(found[1:][::-1]), found[0]]) == whole


@given(st.lists(numbers, min_size=1, max_size=400), st.integers(1, 20))
def test_bins_are_bounded_and_hold_each_number(values: list[float], most: int) -> None:
    """No more bins than allowed, each number in one; a coarser histogram has the same numbers."""
    found = Histogram.of(np.array(values))
    assert len(found.edges) <= MAX_BINS
    assert sum(found.counts) == len(values)
    assert list(found.edges) == sorted(set(found.edges))
    few = found.coarser(most)
    assert len(few.edges) <= max(most, 2)  # numbers of both signs never share a bin
    assert found.counts_in(few) == list(few.counts)


def test_few_distinct_numbers_are_counted_exactly() -> None:
    """Labels are values, not ranges; many distinct numbers are ranges."""
    labels = Histogram.of(np.array([3.0, 0.0, 3.0, 7.0]))
    assert (labels.edges, labels.counts, labels.is_exact) == ((0.0, 3.0, 7.0), (1, 2, 1), True)
    assert not Histogram.of(np.arange(1000.0)).is_exact
