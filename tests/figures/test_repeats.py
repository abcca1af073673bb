"""Ranks of repeated models include the variance between seeds."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.figures.ranking.repeats import seed_ranks, welch

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8)


@given(first=values, second=values)
def test_the_p_value_is_scipys(first: list[float], second: list[float]) -> None:
    """SciPy's Welch test gives the same number, unless rounding dominates the variance."""
    stats = pytest.importorskip("scipy.stats")
    first, second = [round(v, 3) for v in first], [round(v, 3) for v in second]
    if len(set(first)) == len(set(second)) == 1:
        assert welch(first, second) == (1.0 if first[0] == second[0] else 0.0)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of SciPy, about equal values
        expected = stats.ttest_ind(first, second, equal_var=False).pvalue
    assert welch(first, second) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(groups=st.lists(values, min_size=1, max_size=5), confidence=st.floats(0.6, 0.999))
def test_ranks_follow_the_means_and_need_evidence(groups: list[list[float]], confidence: float) -> None:
    """The best mean has rank 1, and stricter tests find no more differences."""
    means = [sum(group) / len(group) for group in groups]
    ranks = seed_ranks(groups, confidence)
    assert ranks[max(range(len(groups)), key=lambda i: means[i])] == 1
    assert all(1 <= rank <= len(groups) for rank in ranks)
    stricter = seed_ranks(groups, (1 + confidence) / 2)
    assert all(strict <= rank for strict, rank in zip(stricter, ranks, strict=True))


@given(groups=st.lists(values, min_size=2, max_size=5), data=st.data())
def test_ranks_do_not_depend_on_the_order_of_models(groups: list[list[float]], data: st.DataObject) -> None:
    """A model's rank depends on the values only."""
    order = data.draw(st.permutations(range(len(groups))))
    ranks = seed_ranks(groups, 0.95)
    assert seed_ranks([groups[index] for index in order], 0.95) == [ranks[index] for index in order]


def test_equal_models_are_rarely_called_different() -> None:
    """Among 2,000 runs with three equal models and five seeds, at most 5 % and chance have different ranks."""
    rng = random.Random(3)
    wrong = sum(
        set(seed_ranks([[rng.gauss(0, 1) for _ in range(5)] for _ in range(3)], 0.95)) != {1}
        for _ in range(2000)
    )
    assert wrong <= 2000 * 0.05 + 3 * (2000 * 0.05 * 0.95) ** 0.5


def test_clearly_different_models_have_different_ranks() -> None:
    """With a difference of six standard deviations, and without any variance."""
    rng = random.Random(4)
    groups = [[6 * model + rng.gauss(0, 1) for _ in range(5)] for model in range(3)]
    assert seed_ranks(groups, 0.95) == [3, 2, 1]
    assert seed_ranks([[0.5, 0.5], [0.25, 0.25], [0.5, 0.5]], 0.95) == [1, 3, 1]
