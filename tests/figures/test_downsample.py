"""Downsampling keeps extremes and order, and adds no points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cerebro.figures.downsample import FEWEST, downsample, kept_indices

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=400)
POINTS = st.integers(min_value=FEWEST, max_value=100)


@given(VALUES, POINTS)
def test_at_most_the_requested_points_are_kept(y: list[float], points: int) -> None:
    """Shorter series are unchanged."""
    found = kept_indices(y, points)
    assert len(found) <= points
    if len(y) <= points:
        assert found == list(range(len(y)))


@given(VALUES, POINTS)
def test_ends_and_extremes_are_kept(y: list[float], points: int) -> None:
    """First, last, minimum and maximum."""
    found = [y[i] for i in kept_indices(y, points)]
    if y:
        assert (found[0], found[-1]) == (y[0], y[-1])
        assert (min(found), max(found)) == (min(y), max(y))


@given(VALUES, POINTS)
def test_kept_points_are_input_points_in_their_order(y: list[float], points: int) -> None:
    """Each point is an input point at its position."""
    places = tuple(float(i) for i in range(len(y)))
    x, values = downsample(places, y, points)
    assert list(x) == sorted(set(x))
    assert all(y[int(place)] == value for place, value in zip(x, values, strict=True))
