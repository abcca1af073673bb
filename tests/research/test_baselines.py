"""Baselines for models with several techniques: memory limits, valid schedules, and the gain of joint planning."""

from __future__ import annotations

import statistics

import pytest

from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.validator import validate
from research.assumed import DEVICE_GIB, WORKLOADS, parallel_plans, saturn
from research.baselines import BASELINES
from tests.scheduling.ticking import Ticking


def test_a_model_has_the_parallel_plans_that_fit_its_memory() -> None:
    """1.8 billion parameters need 27 GiB of state, too much together with 40 GiB of activations: activation
    checkpointing or two devices are necessary."""
    found = {
        (parallel_plan.technique, parallel_plan.gpus)
        for parallel_plan in parallel_plans(WORKLOADS["img"][0], 8, is_half=False)
    }
    assert DEVICE_GIB == 40
    assert ("single", 1) not in found
    assert {("checkpointing", 1), ("offload", 1), ("fsdp", 2), ("ddp", 4)} <= found
    assert ("ddp", 2) not in found


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("is_hopping", [False, True])
def test_baselines_make_valid_schedules(name: str, is_hopping: bool) -> None:
    """The same seed gives the same schedule."""
    problem = saturn("txt", "8+4", is_hopping=is_hopping)
    schedule = BASELINES[name](problem, 3)
    validate(problem, schedule).check()
    assert BASELINES[name](problem, 3) == schedule


def test_a_joint_plan_needs_at_most_four_fifths_of_current_practice() -> None:
    """Twelve models of two sizes on four nodes of eight devices."""
    problem = saturn("img", "4x8", is_hopping=True)
    current = statistics.fmean(BASELINES["current practice"](problem, seed).makespan for seed in range(20))
    found = plan(problem, time_limit_s=200, clock=Ticking())
    validate(problem, found.schedule).check()
    assert found.schedule.makespan <= 0.80 * current
