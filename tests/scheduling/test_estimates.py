"""Sub-epoch times learned from observations: exact for products of model and worker factors."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.scheduling.estimates import Estimates

COSTS = {"small": 0.001, "middle": 0.01, "large": 0.2}
SLOWNESS = {"fast": 0.5, "even": 1.0, "slow": 2.0}


def observed(pairs: list[tuple[str, str]], *, sigma: float = 0.0, seed: int = 0) -> Estimates:
    """Return estimates after these pairs ran, a thousand rows each, with multiplicative times."""
    rng, found = random.Random(seed), Estimates()
    for model, worker in pairs:
        noise = math.exp(rng.gauss(0, sigma))
        found.observe(model, worker, rows=1000, seconds=1000 * COSTS[model] * SLOWNESS[worker] * noise)
    found.settle()
    return found


def test_a_models_time_is_estimated_on_workers_where_it_never_ran() -> None:
    """Each model ran on two of three workers; the third follows, except for the effect of the prior."""
    pairs = [(model, worker) for model in COSTS for worker in SLOWNESS]
    unseen = [("small", "slow"), ("middle", "even"), ("large", "fast")]
    found = observed([pair for pair in pairs if pair not in unseen])
    for _ in range(5):
        found.settle()
    for model, worker in unseen:
        truth = 500 * COSTS[model] * SLOWNESS[worker]
        assert found.seconds(model, worker, rows=500) == pytest.approx(truth, rel=0.2)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.3])
def test_noise_is_measured(sigma: float) -> None:
    """After some repeats the reported deviation approaches the true one; the moving mean limits its accuracy."""
    ran = [(model, worker) for model in COSTS for worker in SLOWNESS] * 20
    assert observed(ran, sigma=sigma).sigma == pytest.approx(sigma, rel=0.3)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 10**6), st.floats(1e-6, 1e6)
        ),
        max_size=40,
    )
)
def test_an_estimate_is_always_positive_and_finite(sub_epochs: list[tuple[str, str, int, float]]) -> None:
    """Estimates are positive and finite."""
    found = Estimates()
    for model, worker, rows, seconds in sub_epochs:
        found.observe(model, worker, rows=rows, seconds=seconds)
    found.settle()
    times = [seconds for row in found.table(["a", "b", "d"], ["x", "y", "v"], rows=100) for seconds in row]
    assert all(0 < seconds < math.inf for seconds in times)


def test_a_single_estimate_equals_the_tables_entry() -> None:
    """Results are equal bit for bit, because a decision must not depend on the method."""
    rng, estimates = random.Random(7), Estimates()
    names, places = ["a", "b", "c"], ["x", "y", "z"]
    for _ in range(30):
        estimates.observe(rng.choice(names), rng.choice(places), rows=100, seconds=rng.uniform(1, 5))
        if rng.random() < 0.2:
            estimates.settle()
        table = estimates.table([*names, "new"], [*places, "far"], rows=50)
        assert table == [
            [estimates.seconds(model, worker, rows=50) for worker in [*places, "far"]]
            for model in [*names, "new"]
        ]


@given(cost=st.floats(1e-6, 1e3), rows=st.integers(1, 10**6))
def test_a_trial_sets_the_estimate_until_sub_epochs_run(cost: float, rows: int) -> None:
    """The model counts as known, and its cost is the trial's."""
    found = Estimates()
    found.seed("tried", "w", rows=10, seconds=10 * cost, technique="ddp-2")
    assert found.knows("tried", "ddp-2")
    assert not found.knows("tried")
    assert found.seconds("tried", "w", rows=rows, technique="ddp-2") == pytest.approx(rows * cost)


@given(
    rates=st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 10), min_size=1),
    fixed=st.dictionaries(st.sampled_from("abc"), st.floats(0, 100)),
    rows=st.integers(1, 1000),
)
def test_the_fixed_time_of_a_sub_epoch_is_separated_from_its_rows(
    rates: dict[str, float], fixed: dict[str, float], rows: int
) -> None:
    """The fit is per model, for any sizes; a model that never ran gets the typical value."""
    found = Estimates()
    for model, rate in rates.items():
        for worker, count in (("x", rows), ("y", 3 * rows)):
            found.observe(model, worker, rows=count, seconds=rate * count, fixed_s=fixed.get(model, 0.0))
    found.settle()
    for model in rates:
        assert found.fixed_s(model) == pytest.approx(fixed.get(model, 0.0))
    mean = sum(fixed.get(model, 0.0) for model in rates) / len(rates)
    assert found.fixed_s("new") == pytest.approx(mean)
    assert Estimates().fixed_s("new") == 0


def test_sub_epochs_correct_a_trial_that_was_wrong() -> None:
    """After one sub-epoch the estimate lies between; after ten it follows the sub-epochs."""
    found = Estimates()
    found.seed("tried", "w", rows=100, seconds=100.0)
    found.observe("tried", "w", rows=100, seconds=200.0)
    assert 100 < found.seconds("tried", "w", rows=100) < 200
    for _ in range(9):
        found.observe("tried", "w", rows=100, seconds=200.0)
    found.settle()
    assert found.seconds("tried", "w", rows=100) == pytest.approx(200, rel=0.05)
    assert 100 < found.seconds("tried", "v", rows=100) <= 200


def test_an_expectation_counts_as_one_observation() -> None:
    """The first sub-epoch weighs as much as all earlier runs, later ones more."""
    found = Estimates()
    assert [found.is_blind] == [True]
    found.expect("a", log_rate=math.log(0.01), fixed_s=3.0, sub_epochs=40)
    found.settle()
    assert found.knows("a")
    assert [found.is_blind] == [False]
    assert found.seconds("a", "w", rows=1000) == pytest.approx(10.0)
    assert found.fixed_s("a") == 3.0
    found.observe("a", "w", rows=1000, seconds=40.0, fixed_s=5.0)
    assert found.seconds("a", "other", rows=1000) == pytest.approx(20.0, rel=0.01)
    assert found.fixed_s("a") == 4.0
    for _ in range(60):
        found.observe("a", "w", rows=1000, seconds=40.0, fixed_s=5.0)
    found.settle()
    assert found.seconds("a", "w", rows=1000) == pytest.approx(40.0, rel=0.05)


def test_a_worker_is_expected_to_be_as_fast_as_others_of_its_kind() -> None:
    """Observations on the worker replace the expectation."""
    found = Estimates()
    found.expect("a", log_rate=0.0, fixed_s=0.0, sub_epochs=5)
    found.expect_slowness("slow", math.log(3))
    assert found.seconds("a", "slow", rows=10) == pytest.approx(3 * found.seconds("a", "w", rows=10))
    for _ in range(3):
        found.observe("a", "slow", rows=10, seconds=10.0)
        found.settle()
    assert found.seconds("a", "slow", rows=10) == pytest.approx(10.0, rel=0.3)


def test_an_unexpected_first_sub_epoch_is_a_surprise() -> None:
    """The noise for plans and forecasts grows with it."""
    found = Estimates()
    found.expect("a", log_rate=0.0, fixed_s=0.0, sub_epochs=5)
    found.expect_sigma(0.05)
    assert found.sigma == pytest.approx(0.05)
    found.observe("a", "w", rows=10, seconds=40.0)
    assert found.surprises == 1
    assert found.sigma > 0.3


def test_doubt_decreases_with_observed_sub_epochs() -> None:
    """Earlier runs count by their confidence; with few sub-epochs the noise itself is uncertain."""
    found = observed([(model, "even") for model in COSTS])
    cost, one = found.shown("small")
    assert cost == pytest.approx(math.log(COSTS["small"]), abs=0.2)
    assert found.sigma < one < 1.5 * found.sigma
    for _ in range(8):
        found.observe("small", "even", rows=1000, seconds=1.0)
    assert found.shown("small")[1] < 1.2 * found.sigma / 3
    assert found.shown("never ran")[1] == math.inf
    found.expect("known", log_rate=0.0, fixed_s=0.0, sub_epochs=16)
    before = found.shown("known")[1]
    assert before < 1.2 * found.sigma / 4
    found.observe("known", "even", rows=1000, seconds=1000.0)
    assert before < found.shown("known")[1] < found.sigma
