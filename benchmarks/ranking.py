"""Rankings: how often equal models are called different, and the power against an oracle that knows all variances."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.figure import Figure
from cerebro.figures.ranking.statistics import Floats, RowGroups, better_models, bootstrap, holm, two_sided

_TRIALS, _MODELS, _ROWS, _RESAMPLES = 1000, 5, 200, 1000
_SHARED = 0.7
"""Fraction of the variance that all models share, because some rows are hard for each."""
_DIFFERENCE = 0.2
_MANY = 1_000_000
"""Degrees of freedom of a known variance."""


def benchmark() -> list[Figure]:
    """Return the family-wise error rate and the loss of power."""
    random = np.random.default_rng(0)
    wrong = found = oracle = 0
    true_error = math.sqrt(2 * (1 - _SHARED) / _ROWS)
    for trial in range(_TRIALS):
        values = math.sqrt(_SHARED) * random.standard_normal((_ROWS, 1)) + math.sqrt(
            1 - _SHARED
        ) * random.standard_normal((_ROWS, _MODELS))
        wrong += int(_better(values, trial).any())
        values[:, 0] += _DIFFERENCE
        found += int(_better(values, trial)[0, 1:].sum())
        oracle += _oracle(values, true_error)
    pairs = _TRIALS * (_MODELS - 1)
    simulated = f"{_MODELS} models, {_ROWS} rows, {_TRIALS:,} trials"
    return [
        Figure(
            what=f"ranking: trials that call any of {_MODELS} equal models different at 95 %",
            measured=simulated,
            ratio=wrong / _TRIALS,
            bar=0.05,
            sense="at most",
        ),
        Figure(
            what="ranking: power of Holm's test with known variances minus the ranking's",
            measured=f"{simulated}; {100 * oracle / pairs:.1f} % and {100 * found / pairs:.1f} % of pairs found",
            ratio=(oracle - found) / pairs,
            bar=0.05,
            sense="at most",
        ),
    ]


def _better(values: Floats, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    groups = RowGroups(_ROWS, seed)
    means, sums = zip(*(groups.residuals(column) for column in values.T), strict=True)
    estimates = bootstrap(np.stack(sums, axis=1), _ROWS, resamples=_RESAMPLES, confidence=0.95, seed=seed)
    return better_models(np.array(means), estimates, 0.95)


def _oracle(values: Floats, true_error: float) -> int:
    first, second = np.triu_indices(_MODELS, k=1)
    means = values.mean(axis=0)
    difference = means[first] - means[second]
    is_different = holm(two_sided(np.abs(difference) / true_error, _MANY), 0.05)
    return int((is_different & (first == 0) & (difference > 0)).sum())
