"""Reduction of a line to fewer points that look the same on a screen.

Each bucket keeps its minimum, its maximum and its last point, so spikes and the line's end survive. A random or
regular sample would lose spikes, and means would be values that no model reported. The idea is M4 of Jugel et al.,
"M4: A Visualization-Oriented Time Series Data Aggregation" (VLDB 2014, section 4). M4 also keeps a bucket's first
point, which is next to the last one of the bucket before.

The page's curves and live series and `controller.projections.records` use it. Pure Python, because the page's process
has no numpy. A million points take a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

FEWEST = 4
"""The first point and one bucket."""

_PER_BUCKET = 3


def kept_indices(y: Sequence[float], points: int) -> list[int]:
    """Select the points to keep.

    Args:
        y: finite values, in order.
        points: maximum number of points.

    Returns:
        Ascending indices: the first point, and in each bucket the minimum, the maximum and the last one. All indices if
        there are no more than `points`.

    Raises:
        ValueError: `points` is less than `FEWEST`.
    """
    if points < FEWEST:
        raise ValueError(f"a line cannot be drawn with {points} points: ask for {FEWEST} or more")
    if len(y) <= points:
        return list(range(len(y)))
    buckets = (points - 1) // _PER_BUCKET
    rest = len(y) - 1
    indices = [0]
    for number in range(buckets):
        begin, end = 1 + number * rest // buckets, 1 + (number + 1) * rest // buckets
        part = y[begin:end]
        low, high = begin + part.index(min(part)), begin + part.index(max(part))
        indices.extend(sorted({low, high, end - 1}))
    return indices


def downsample(
    x: Sequence[float], y: Sequence[float], points: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the points selected by `kept_indices`, as (x, y).

    Raises:
        ValueError: `x` and `y` differ in length, or `points` is less than `FEWEST`.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x values for {len(y)} y values: give one each")
    chosen = kept_indices(y, points)
    return tuple(x[i] for i in chosen), tuple(y[i] for i in chosen)
