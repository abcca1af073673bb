"""Paired bootstrap over rows, tests of all pairs of models, and shared ranks. Pure; only NumPy.

All models see the same resamples, so rows that are hard for every model cancel out in a difference (paired bootstrap:
Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 6 and 16). The p-value of a pair compares the
difference of its means with the bootstrap's standard error by Student's t. A count of resamples would not do: with
10,000 resamples it cannot fall below 1/10,000, and 1,000 models have 499,500 pairs. Holm's procedure (1979) corrects
for all pairs, so the probability of calling any equal models different is at most 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 2048
"""Maximum number of resampled units. More rows are put into groups of equal size at random.

The standard error then has a relative error of 1 / sqrt(2 * 2048) = 1.6 %, and the cost no longer depends on the rows.
"""
MIN_ROWS = 20
"""Fewer rows are too few for a bootstrap."""
MAX_MODELS = 2000
"""Maximum number of models: comparing all pairs takes about 100 bytes for the square of it, 400 MB."""
_BLOCK_DRAWS = 1 << 18
"""Maximum number of random draws at once: 2 MB."""
_FLOOR = 1e-12
"""Smallest variance of a difference, relative to the variances of both models: below, rounding dominates."""


class Estimates(NamedTuple):
    """Bootstrap estimates, one entry per model.

    Attributes:
        low, high: deviations of the interval's bounds from the mean.
        covariance: of the models' means, models x models.
        freedom: degrees of freedom of a standard error.
    """

    low: Floats
    high: Floats
    covariance: Floats
    freedom: int


class RowGroups:
    """Random groups of rows, the same for all models.

    Args:
        rows: number of rows.
        seed: seed of the assignment.
    """

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.count = rows, min(rows, MAX_GROUPS)
        shuffled = (
            np.random.default_rng([seed, 1]).permutation(rows) if rows > MAX_GROUPS else np.arange(rows)
        )
        self._group = shuffled % self.count

    def residuals(self, values: Floats) -> tuple[float, Floats]:
        """Return the mean of a model's values, and for each group the sum of their deviations from the mean."""
        mean = math.fsum(values.tolist()) / self.rows
        sums: Floats = np.bincount(self._group, weights=values - mean, minlength=self.count).astype(
            np.float64
        )
        return mean, sums


def bootstrap(residuals: Floats, rows: int, *, resamples: int, confidence: float, seed: int) -> Estimates:
    """Resample the groups with replacement, the same ones for all models.

    Args:
        residuals: groups x models, from `RowGroups.residuals`.
        rows: number of rows in all groups.
    """
    groups, models = residuals.shape
    deviations = np.empty((resamples, models), dtype=np.float32)
    covariance = np.zeros((models, models))
    done = 0
    for counts in _counts(groups, resamples, seed):
        block = counts @ residuals / rows
        covariance += block.T @ block
        deviations[done : done + len(block)] = block
        done += len(block)
    # The resamples' variance is that of the sample, which is too small by this factor.
    correction = groups / (groups - 1)
    tail = (1 - confidence) / 2
    bounds = np.empty((2, models))
    for model in range(models):  # one at a time: sorting all would copy the largest array
        bounds[:, model] = np.quantile(deviations[:, model], (tail, 1 - tail))
    low, high = bounds * math.sqrt(correction)
    return Estimates(low, high, covariance * (correction / resamples), groups - 1)


def better_models(scores: Floats, estimates: Estimates, confidence: float) -> npt.NDArray[np.bool_]:
    """Return for models i and j, at [i, j], whether i is significantly better than j, over all pairs together.

    Args:
        scores: means of the models; higher is better.
    """
    first, second = np.triu_indices(len(scores), k=1)
    difference = scores[first] - scores[second]
    variances = np.diag(estimates.covariance)
    both = variances[first] + variances[second]
    variance = np.maximum(both - 2 * estimates.covariance[first, second], _FLOOR * both)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(difference == 0, 0.0, np.abs(difference) / np.sqrt(variance))
    is_different = holm(two_sided(distance, estimates.freedom), 1 - confidence)
    found = np.zeros((len(scores), len(scores)), dtype=bool)
    is_first = is_different & (difference > 0)
    is_second = is_different & (difference < 0)
    found[first[is_first], second[is_first]] = True
    found[second[is_second], first[is_second]] = True
    return found


def two_sided(distance: Floats, freedom: int) -> Floats:
    """Return two-sided p-values of Student's t, by Wallace's normal approximation (1959)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom)
    with np.errstate(over="ignore"):
        normal = scale * np.sqrt(np.log1p(np.square(distance) / freedom))
    return np.fromiter(map(math.erfc, (normal / math.sqrt(2)).tolist()), dtype=np.float64, count=len(normal))


def holm(p_values: Floats, level: float) -> npt.NDArray[np.bool_]:
    """Return which hypotheses Holm's procedure rejects at a family-wise error rate."""
    order = np.argsort(p_values, kind="stable")
    is_small = p_values[order] <= level / np.arange(len(order), 0, -1)
    rejected = int(np.argmin(is_small)) if not is_small.all() else len(order)
    found = np.zeros(len(order), dtype=bool)
    found[order[:rejected]] = True
    return found


def ranks(scores: Floats, better: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return shared ranks: 1 more than the number of better models, and below each better model.

    So no two models of one rank are significantly different. A rank is a lower bound of the rank by true means, for
    all models together.
    """
    found: npt.NDArray[np.int64] = 1 + better.sum(axis=0, dtype=np.int64)
    for model in np.argsort(-scores, kind="stable"):
        above = found[better[:, model]]
        if len(above):
            found[model] = max(found[model], above.max() + 1)
    return found


def _counts(groups: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield blocks of resamples x groups: the times that a resample has each group."""
    random = np.random.default_rng([seed, 2])
    block = max(1, _BLOCK_DRAWS // groups)
    for done in range(0, resamples, block):
        size = min(block, resamples - done)
        drawn = random.integers(0, groups, (size, groups)) + np.arange(size)[:, None] * groups
        yield np.bincount(drawn.ravel(), minlength=size * groups).reshape(size, groups).astype(np.float64)
