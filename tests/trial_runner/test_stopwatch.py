"""The time per batch and its uncertainty, with a fake clock."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from trial_runner.stopwatch import LONGEST_S, MIN_SIGMA, PRIOR_SIGMA, WARM_UP, Pace, Stopwatch


def measured(batch_times: Iterable[float]) -> Pace:
    """Time batches of these durations in seconds."""
    now = 0.0
    watch = Stopwatch(clock=lambda: now)
    for number, seconds in enumerate(batch_times):
        if not watch.should_continue(number):
            break
        now += seconds
    return watch.pace()


def test_without_a_timed_batch_there_is_no_rate() -> None:
    """Warm-up batches are not timed."""
    assert measured([1.0] * WARM_UP) == Pace(batch_s=0.0, sigma=MIN_SIGMA, batches=0)


@pytest.mark.parametrize("batch_s", [0.0, LONGEST_S])
def test_a_single_block_has_the_prior_sigma(batch_s: float) -> None:
    """One block shows no spread; zero and infinity are both wrong."""
    pace = measured([LONGEST_S, batch_s, 0.0])
    assert (pace.batch_s, pace.sigma, pace.batches) == (batch_s, PRIOR_SIGMA, 1)


def test_equal_halves_have_the_least_sigma() -> None:
    """A short measurement is no exact forecast."""
    pace = measured([0.1] * 40)
    assert pace.batch_s == pytest.approx(0.1)
    assert pace.sigma == MIN_SIGMA
