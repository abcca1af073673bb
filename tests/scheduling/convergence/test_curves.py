"""Forecasts of a model's final loss from its observed losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.convergence import Sample, forecast
from cerebro.scheduling.convergence.curves import HALF_LIVES, condensed

counts = st.integers(1, 9)
values = st.floats(0, 100)
samples = st.lists(st.tuples(st.floats(0, 1), values, counts), min_size=1, max_size=40).map(
    lambda found: [Sample(*each) for each in sorted(found)]
)


def along(half: float, *, is_power: bool, floor: float, height: float, done: float) -> list[Sample]:
    """Return noise-free losses along a curve, up to the share `done` of the training."""
    shares = [done * (number + 0.5) / 30 for number in range(30)]
    xs = [half / (half + t) if is_power else 2 ** (-t / half) for t in shares]
    return [Sample(t, floor + height * x, 1) for t, x in zip(shares, xs, strict=True)]


@pytest.mark.parametrize("is_power", [False, True])
@pytest.mark.parametrize("half", HALF_LIVES[1:7])
def test_a_known_curve_family_is_extrapolated(half: float, is_power: bool) -> None:
    """From the first half, the final loss is known to 5 % of its fall."""
    samples = along(half, is_power=is_power, floor=1.0, height=4.0, done=0.5)
    end = half / (half + 1) if is_power else 2 ** (-1 / half)
    assert forecast(samples, 0.5).final == pytest.approx(1.0 + 4.0 * end, abs=0.2)


@given(samples, st.floats(0, 1))
def test_the_weights_of_curves_sum_to_one(curve: list[Sample], done: float) -> None:
    """The weights sum to one, and no curve has a goal beyond the end of training."""
    found = forecast(curve, done)
    assert sum(each.weight for each in found.predictions) == pytest.approx(1.0, abs=1e-4)
    assert all(each.remaining_share <= 1 - done + 1e-9 for each in found.predictions)


@given(samples, st.floats(0.01, 100))
def test_the_forecast_scales_with_the_unit_of_the_loss(curve: list[Sample], factor: float) -> None:
    """For example bits instead of nats."""
    scaled = [sample._replace(value=sample.value * factor) for sample in curve]
    final = forecast(curve, 0.5).final
    assert forecast(scaled, 0.5).final == pytest.approx(final * factor, rel=1e-4, abs=1e-3 * factor)


@given(samples, st.integers(1, 10))
def test_merged_neighbours_keep_their_mean(curve: list[Sample], most: int) -> None:
    found = condensed(curve, most)
    total = sum(sample.number for sample in curve)
    assert len(found) == min(most, len(curve))
    assert sum(sample.number for sample in found) == total
    assert sum(s.number * s.value for s in found) == pytest.approx(sum(s.number * s.value for s in curve))
    assert [sample.share for sample in found] == sorted(sample.share for sample in found)
