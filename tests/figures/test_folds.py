"""Ranks of configurations allow for the overlap of the folds' training rows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.figures.ranking.folds import corrected_resampled

pairs = st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=10)


@given(values=pairs, overlap=st.floats(0, 1))
def test_the_p_value_is_the_corrected_test_of_scipys_distribution(
    values: list[tuple[float, float]], overlap: float
) -> None:
    """Without overlap it is the paired t-test; overlap makes it larger."""
    stats = pytest.importorskip("scipy.stats")
    first, second = ([round(pair[place], 3) for pair in values] for place in (0, 1))
    differences = [round(one - other, 3) for one, other in zip(first, second, strict=True)]
    if len(set(differences)) == 1:
        return
    count, mean = len(differences), sum(differences) / len(differences)
    spread = sum((each - mean) ** 2 for each in differences) / (count - 1)
    t = mean / ((1 / count + overlap) * spread) ** 0.5
    found = corrected_resampled(first, second, overlap=overlap)
    assert found == pytest.approx(2 * stats.t.sf(abs(t), count - 1), rel=1e-5, abs=1e-9)
    assert found >= corrected_resampled(first, second, overlap=0.0) - 1e-12


def test_values_without_variance_are_separated_by_any_difference() -> None:
    """As a rounded metric may have."""
    assert corrected_resampled([0.5, 0.5], [0.5, 0.5], overlap=0.5) == 1.0
    assert corrected_resampled([0.75, 0.75], [0.5, 0.5], overlap=0.5) == 0.0


def test_correlated_folds_are_rarely_called_different() -> None:
    """Values whose correlation is the ratio of validation rows to all rows: at most 5 % and chance are wrong.

    The ordinary paired t-test is wrong far more often.
    """
    rng, folds, trials = random.Random(5), 5, 4000
    wrong = {0.0: 0, 1 / (folds - 1): 0}
    for _ in range(trials):
        shared = rng.gauss(0, (1 / folds) ** 0.5)
        values = [shared + rng.gauss(0, (1 - 1 / folds) ** 0.5) for _ in range(folds)]
        for overlap in wrong:
            wrong[overlap] += corrected_resampled(values, [0.0] * folds, overlap=overlap) < 0.05
    allowed = trials * 0.05 + 3 * (trials * 0.05 * 0.95) ** 0.5
    assert wrong[1 / (folds - 1)] <= allowed < wrong[0.0]
