"""Gangs of workers in simulation: valid schedules, and the speed-up that the formula predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.validator import validate
from research.gangs import Training, sub_clusters, with_gangs
from research.problems import open_shop

FREE = Training(name="free", batch_s=1.0, gradient_bytes=0.0, bytes_per_s=float("inf"))
SLOW = Training(name="slow", batch_s=0.6, gradient_bytes=100e6, bytes_per_s=1.25e9)


@given(
    models=st.integers(1, 5),
    workers=st.integers(2, 6),
    epochs=st.integers(1, 2),
    members=st.integers(1, 6),
    sizes=st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=6, max_size=6),
    training=st.sampled_from((FREE, SLOW)),
)
@settings(deadline=None, max_examples=40)
def test_simulated_gangs_obey_every_scheduling_rule(
    models: int, workers: int, epochs: int, members: int, sizes: list[float], training: Training
) -> None:
    """Each model trains on each partition once an epoch, and no schedule beats the bound."""
    times = [[10.0 + model] * workers for model in range(models)]
    problem = with_gangs(open_shop(times, epochs=epochs, sizes=sizes[:workers]), training)
    members = min(members, workers)
    report = validate(problem, sub_clusters(problem, members, time_limit_s=0.0)).check()
    assert report.gap >= 0


def test_without_cost_gangs_keep_all_workers_busy() -> None:
    """Four models on eight workers take half the time in pairs of workers."""
    problem = with_gangs(open_shop([[100.0] * 8] * 4), FREE)
    assert sub_clusters(problem, 1).makespan == pytest.approx(800)
    in_pairs = sub_clusters(problem, 2)
    assert in_pairs.makespan == pytest.approx(400, rel=1e-2)
    assert validate(problem, in_pairs).check().gap == pytest.approx(0, abs=1e-2)


def test_the_network_limits_the_speed_up_of_a_gang() -> None:
    """A ring of q workers sends 2 (q - 1) / q of the gradients for each batch."""
    assert SLOW.speed_up(1) == 1
    assert SLOW.all_reduce_s(2) == pytest.approx(100e6 / 1.25e9, rel=1e-2)
    assert 1 < SLOW.speed_up(2) < SLOW.speed_up(4) < 4
    slower = replace(SLOW, bytes_per_s=1e7)
    assert slower.speed_up(2) < 1
