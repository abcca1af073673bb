"""Named scenarios have the promised properties for each seed."""

from __future__ import annotations

from statistics import fmean

import pytest

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Conditions
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from research.scenarios import (
    SCENARIOS,
    SUBLINEAR,
    find,
    thesis,
    thesis_full_nodes,
    thesis_per_gpu,
)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.slow
def test_a_scenario_depends_on_its_seed_alone(name: str) -> None:
    """The same seed gives the same problem and conditions, in whole seconds."""
    scenario = find(name)
    problem = scenario.problem(1)
    assert problem == scenario.problem(1)
    assert scenario.name == name
    assert scenario.about
    assert all(
        parallel_plan.seconds == round(parallel_plan.seconds)
        for row in problem.parallel_plans
        for parallel_plans in row
        for parallel_plan in parallel_plans
    )
    if scenario.conditions:
        assert scenario.conditions(problem) != Conditions()


@pytest.mark.parametrize(
    ("figure", "random", "per_gpu"), [("4.1", 8603, 15926), ("4.2", 5252, 7780), ("4.3", 8956, 10172)]
)
def test_thesis_scenarios_are_calibrated_to_its_makespans(figure: str, random: int, per_gpu: int) -> None:
    """Average makespans match the printed ones: random order within 10 %, one model per GPU within 5 %."""
    for problem, printed, tolerance in (
        (thesis_full_nodes(figure), random, 0.1),
        (thesis_per_gpu(figure), per_gpu, 0.05),
    ):
        found = [dispatch(problem, POLICIES["random"], seed=seed).makespan for seed in range(10)]
        assert fmean(found) == pytest.approx(printed, rel=tolerance)


@pytest.mark.parametrize(("figure", "milp"), [("4.1", 7967.0), ("4.2", 5255.36), ("4.3", 8994.59)])
def test_thesis_bounds_are_just_below_its_unfinished_solver(figure: str, milp: float) -> None:
    """The thesis's MILP, stopped at 300 s, was less than 0.5 % above the bound."""
    assert 0.995 * milp < lower_bound(thesis(figure)) <= milp


def test_a_sub_epoch_of_the_thesis_follows_equation_4_15() -> None:
    """Time per shard and GPU, times the node's shards, divided by the GPUs or by their speed-up."""
    shard = thesis_per_gpu("4.2").parallel_plans[0][0][0].seconds
    linear = {
        parallel_plan.gpus: parallel_plan.seconds for parallel_plan in thesis("4.2").parallel_plans[0][0]
    }
    assert linear == {1: 4 * shard, 2: 2 * shard, 4: shard}
    slower = {
        parallel_plan.gpus: parallel_plan.seconds
        for parallel_plan in thesis("4.2", SUBLINEAR).parallel_plans[0][0]
    }
    assert slower == {1: 4 * shard, 2: round(4 * shard / 1.8), 4: round(4 * shard / 3.2)}
