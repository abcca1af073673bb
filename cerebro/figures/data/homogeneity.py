"""Test whether partitions differ more than by chance. Pure; only NumPy.

Pearson's chi-square test of homogeneity on a table of partitions x bins. Numbers are in bins too, so one test serves
labels and measurements. Adjacent bins are joined until chance expects enough values in each cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_EXPECTED = 5.0
"""Minimum of the expected values of a cell, below which the test is unreliable."""
_MAX_TERMS = 10_000
_PRECISION = 1e-14


class Difference(NamedTuple):
    """Result of the test.

    Attributes:
        p_value: probability of a difference this large by chance.
        effect: Cohen's w; 0.1 is a small effect, 0.5 a large one.
    """

    p_value: float
    effect: float


def compare_partitions(counts: Sequence[Sequence[int]]) -> Difference | None:
    """Compare the distributions of partitions.

    Args:
        counts: for each partition, its values in each bin.

    Returns:
        None for fewer than two partitions with values, or too few values.
    """
    table = np.array(counts, np.float64)
    if table.ndim != 2:
        return None
    table = table[table.sum(axis=1) > 0]
    if len(table) < 2:
        return None
    table = _joined_bins(table)
    if table.shape[1] < 2:
        return None
    total = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    statistic = float((np.square(table - expected) / expected).sum())
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return Difference(chi_square_tail(statistic, freedom), math.sqrt(statistic / total))


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Return the probability that a chi-square variable exceeds `statistic`: the incomplete gamma function.

    By its series, or its continued fraction in the tail (Press et al., Numerical Recipes, section 6.2).
    """
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, _MAX_TERMS):
            term *= x / (a + n)
            total += term
            if term < total * _PRECISION:
                break
        return max(0.0, 1 - total * scale)
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for n in range(1, _MAX_TERMS):
        step = -n * (n - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return min(1.0, fraction * scale)


def _joined_bins(table: Floats) -> Floats:
    """Join adjacent columns until each has `MIN_EXPECTED` in the smallest partition by expectation."""
    least = MIN_EXPECTED * table.sum() / table.sum(axis=1).min()
    joined: list[Floats] = []
    open_bin = np.zeros(len(table))
    for column in table.T:
        open_bin = open_bin + column
        if open_bin.sum() >= least:
            joined.append(open_bin)
            open_bin = np.zeros(len(table))
    if joined:
        joined[-1] = joined[-1] + open_bin
    return np.array(joined).T if joined else np.zeros((len(table), 0))
