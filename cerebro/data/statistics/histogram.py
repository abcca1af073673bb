"""Counts of numbers in bins of one width. Histograms of parts merge to exactly the histogram of the whole.

A bin's width is a power of two, and its lower edge is a multiple of the width. So a wider bin is the union of narrower
ones. The width is the smallest that needs at most `MAX_BINS` bins; empty bins are not stored. It depends only on the
set of numbers, not on their order or on the merges before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_BINS = 128
"""Maximum number of bins."""
_MANTISSA_BITS = 51
"""Maximum number of bits of the largest number divided by the width, so that edges are exact."""
_MIN_EXPONENT, _MAX_EXPONENT = -1074, 1000
_LARGEST = 1e300
"""So that edges cannot overflow."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Numbers of values in bins with values, from low to high.

    Attributes:
        edges: lower edge of each bin.
        counts: number of values of each bin.
        exponent: logarithm of the width to base 2.
        is_exact: True if each value equals the edge of its bin, so bins are distinct values.
    """

    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    exponent: int = _MIN_EXPONENT
    is_exact: bool = True

    @classmethod
    def of(cls, values: Floats) -> Histogram:
        """Count finite numbers; beyond `_LARGEST` they count as it."""
        if not len(values):
            return cls()
        values = np.clip(values, -_LARGEST, _LARGEST)
        largest = float(np.abs(values).max())
        exponent = int(np.frexp(largest)[1]) - _MANTISSA_BITS if largest else _MIN_EXPONENT
        return _counted(np.sort(values), None, max(_MIN_EXPONENT, exponent), is_exact=True, most=MAX_BINS)

    @classmethod
    def merge(cls, parts: Sequence[Histogram]) -> Histogram:
        """Return the histogram of the values of all parts."""
        parts = [part for part in parts if part.edges]
        if len(parts) <= 1:
            return parts[0] if parts else cls()
        edges = np.concatenate([part.edges for part in parts])
        order = np.argsort(edges, kind="stable")
        counts = np.concatenate([part.counts for part in parts])[order]
        exponent = max(part.exponent for part in parts)
        is_exact = all(part.is_exact for part in parts)
        return _counted(edges[order], counts, exponent, is_exact=is_exact, most=MAX_BINS)

    def coarser(self, most: int) -> Histogram:
        """Return the same values in at most `most` wider bins."""
        counts = np.array(self.counts, np.int64)
        return _counted(np.array(self.edges), counts, self.exponent, is_exact=self.is_exact, most=most)

    def counts_in(self, bins: Histogram) -> list[int]:
        """Return the values in each bin of a histogram that has all values of this one."""
        floored = _floor(np.array(self.edges), bins.exponent)
        positions = np.searchsorted(np.array(bins.edges), floored)
        return [int(n) for n in np.bincount(positions, weights=self.counts, minlength=len(bins.edges))]


def _counted(
    values: Floats, counts: npt.NDArray[np.int64] | None, exponent: int, *, is_exact: bool, most: int
) -> Histogram:
    """Count sorted values in bins at least ``2**exponent`` wide."""
    if not len(values):
        return Histogram()
    low, high = exponent, _MAX_EXPONENT
    if len(values) > most and _num_bins(values, low) > most:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _num_bins(values, middle) > most else (low, middle)
        exponent = high
    floored = _floor(values, exponent)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(floored) > 0]))
    ones = np.ones(len(values), np.int64) if counts is None else counts
    return Histogram(
        edges=tuple(floored[starts].tolist()),
        counts=tuple(np.add.reduceat(ones, starts).tolist()),
        exponent=exponent,
        is_exact=is_exact and bool((floored == values).all()),
    )


def _num_bins(values: Floats, exponent: int) -> int:
    return 1 + int(np.count_nonzero(np.diff(_multiples(values, exponent))))


def _floor(values: Floats, exponent: int) -> Floats:
    floored: Floats = np.ldexp(_multiples(values, exponent), exponent) + 0.0  # no negative zero
    return floored


def _multiples(values: Floats, exponent: int) -> Floats:
    """Return the edges of the numbers' bins as multiples of the width."""
    multiples: Floats = np.floor(np.ldexp(values, -exponent))
    multiples[(multiples == 0) & (values < 0)] = -1.0  # the quotient of a tiny negative number is zero
    return multiples
