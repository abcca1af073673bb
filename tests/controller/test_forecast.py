"""Forecasts of a run's finish for a number of workers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.scaling.autoscaler.forecast import forecast
from tests.controller.autoscaler_worlds import outlook


@pytest.mark.slow
def test_more_workers_help_only_with_enough_models() -> None:
    """16 models on 8 partitions: half the workers take twice as long, and twice the workers half as long plus
    start-up. 8 models cannot use twice the workers."""
    found = forecast(outlook(16, 8, 4), [8, 4, 16])
    assert found[8].p50_s == pytest.approx(16 * 4 * 300, rel=0.05)
    assert found[4].p50_s == pytest.approx(2 * found[8].p50_s, rel=0.05)
    assert 0.5 * found[8].p50_s < found[16].p50_s < 0.62 * found[8].p50_s
    few = forecast(outlook(8, 8, 4), [8, 16])
    assert few[16].p50_s > 0.8 * few[8].p50_s


def test_uncertain_models_widen_the_forecast() -> None:
    """Uncertain models widen the forecast even without noise."""
    sure = replace(outlook(8, 4, 2), sigma=0.0)
    unsure = replace(sure, doubts=(0.3,) * 8)
    known, doubted = (forecast(each, [4], limit_s=20.0)[4] for each in (sure, unsure))
    assert known.p90_s == known.p50_s
    assert doubted.p90_s > 1.03 * doubted.p50_s


def test_noise_and_losses_make_the_forecast_later_and_wider() -> None:
    """P90 exceeds P50 under noise, and occasional worker losses add time."""
    calm = forecast(outlook(8, 8, 2, sigma=0.0), [8])[8]
    noisy = forecast(outlook(8, 8, 2, sigma=0.3), [8])[8]
    lossy = forecast(replace(outlook(8, 8, 2, sigma=0.3), losses_per_s=1 / 3600), [8])[8]
    assert calm.p90_s == pytest.approx(calm.p50_s)
    assert noisy.p90_s > noisy.p50_s > calm.p50_s
    assert lossy.p50_s > noisy.p50_s


@pytest.mark.parametrize(("models", "partitions", "epochs"), [(256, 16, 1), (256, 16, 10), (500, 40, 3)])
def test_the_forecast_of_a_large_run_respects_its_time_limit(
    models: int, partitions: int, epochs: int
) -> None:
    """A partial simulation is exact enough for the whole run."""
    remaining = outlook(models, partitions, epochs)
    ticks = itertools.count()
    found = forecast(
        remaining, [partitions, partitions // 2, 2 * partitions], limit_s=5, clock=lambda: next(ticks)
    )
    assert next(ticks) > 5, "the limit was reached"
    assert found[partitions].p50_s == pytest.approx(models * epochs * 300, rel=0.06)
    assert found[partitions // 2].p50_s == pytest.approx(2 * models * epochs * 300, rel=0.06)


@settings(deadline=None, max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
    left=st.integers(1, 31),
    counts=st.lists(st.integers(-1, 12), min_size=1, max_size=5),
    slow=st.sampled_from((1.0, 4.0)),
    lost=st.booleans(),
)
def test_any_remaining_work_and_replicas_have_a_forecast(  # type: ignore[no-untyped-def]
    shape, left, counts, slow, lost
) -> None:
    """Half-done models and partitions without a holder get a plausible finish for any number of workers."""
    models, partitions, workers, epochs = shape
    remaining = outlook(models, partitions, epochs, workers=workers, slow=slow)
    mask = left & ((1 << partitions) - 1)
    holders = ((), *remaining.holders[1:]) if lost else remaining.holders
    remaining = replace(
        remaining, remaining_partitions=(mask, *remaining.remaining_partitions[1:]), holders=holders
    )
    found = forecast(remaining, counts, limit_s=0.2)
    assert found.keys() == {count for count in counts if count > 0}
    assert all(0 <= ends.p50_s <= ends.p90_s * (1 + 1e-9) for ends in found.values())
