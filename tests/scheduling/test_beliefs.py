"""Confidence in estimates of models."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.beliefs import beliefs

COST = st.floats(-5.0, 5.0)
DOUBT = st.one_of(st.just(math.inf), st.floats(0.0, 2.0))


@given(
    shown=st.lists(st.tuples(COST, DOUBT), min_size=1, max_size=8),
    lasted=st.lists(st.floats(-8.0, 8.0), max_size=8),
    sigma=st.floats(0.0, 1.0),
)
def test_any_observations_give_a_finite_belief(
    shown: list[tuple[float, float]], lasted: list[float], sigma: float
) -> None:
    """Exact observations have no doubt, and a running sub-epoch never lowers a cost."""
    running = dict(enumerate(lasted[: len(shown)]))
    found, calm = beliefs(shown, running, sigma=sigma), beliefs(shown, sigma=sigma)
    assert all(map(math.isfinite, (*found.shifts, *found.doubts, found.shared)))
    assert all(doubt >= 0 for doubt in found.doubts)
    for shift, doubt, (_, known) in zip(calm.shifts, calm.doubts, shown, strict=True):
        assert known or (shift, doubt) == pytest.approx((0.0, 0.0))
    if len(running) == len(shown):
        assert all(more >= less - 1e-6 for more, less in zip(found.shifts, calm.shifts, strict=True))


def test_noisy_estimates_shrink_towards_the_mean() -> None:
    """Noisy estimates shrink towards the mean, are more often right, and state their error correctly."""
    rng, raw, better, scaled = random.Random(5), [], [], []
    for _ in range(300):
        truth = [rng.gauss(0.0, 0.3) for _ in range(10)]
        shown = [(cost + rng.gauss(0.0, 0.3), 0.3) for cost in truth]
        found = beliefs(shown, sigma=0.3)
        for cost, (estimate, _), shift, doubt in zip(truth, shown, found.shifts, found.doubts, strict=True):
            raw.append((estimate - cost) ** 2)
            better.append((estimate + shift - cost) ** 2)
            scaled.append((estimate + shift - cost) ** 2 / doubt**2)
    assert statistics.fmean(better) < 0.85 * statistics.fmean(raw)
    assert 0.7 < statistics.fmean(scaled) < 1.3


def test_one_sub_epoch_each_separates_models_with_different_costs() -> None:
    """Differences exceed the noise, so each estimate equals its observation."""
    found = beliefs([(0.0, 0.1), (2.0, 0.1), (4.0, 0.1)], sigma=0.1)
    assert found.shifts == pytest.approx((0.0, 0.0, 0.0), abs=0.02)


def test_running_sub_epochs_raise_the_expected_cost() -> None:
    """The typical cost exceeds the observed mean, and a sub-epoch that has run long is costly."""
    shown = [(0.0, 0.2), (0.1, 0.2), (-0.1, 0.2), (0.0, math.inf), (0.0, math.inf)]
    calm, found = beliefs(shown, sigma=0.2), beliefs(shown, {3: 0.5}, sigma=0.2)
    assert found.shifts[3] > 0.2
    assert found.shifts[4] > calm.shifts[4]
