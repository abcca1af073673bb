"""Named problems are what their names promise, for every seed."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest

from cerebro.errors import InstanceError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Conditions
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from research.scenarios import (
    _NETWORKS,
    SCENARIOS,
    SUBLINEAR,
    balanced,
    find,
    narrow,
    paper,
    thesis,
    thesis_full_nodes,
    thesis_per_gpu,
)


def _times(problem: Problem) -> list[list[float]]:
    return [[parallel_plans[0].seconds for parallel_plans in row] for row in problem.strategies]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_made_by_its_seed_alone(name: str) -> None:
    """The same seed gives the same problem and conditions, of whole seconds."""
    scenario = find(name)
    problem = scenario.problem(1)
    assert problem == scenario.problem(1)
    assert scenario.name == name
    assert scenario.about
    assert all(
        parallel_plan.seconds == round(parallel_plan.seconds)
        for row in problem.strategies
        for parallel_plans in row
        for parallel_plan in parallel_plans
    )
    if scenario.conditions:
        assert scenario.conditions(problem) != Conditions()


@pytest.mark.parametrize("make", [paper, narrow, balanced])
def test_seeds_give_different_problems(make: object) -> None:
    """Random problems differ from seed to seed."""
    assert callable(make)
    assert make(6, 4, 0) != make(6, 4, 1)


@pytest.mark.parametrize(
    ("figure", "random", "per_gpu"), [("4.1", 8603, 15926), ("4.2", 5252, 7780), ("4.3", 8956, 10172)]
)
def test_thesis_scenarios_are_calibrated_to_its_makespans(figure: str, random: int, per_gpu: int) -> None:
    """Random order comes within 10 % of the printed makespans, one model per GPU within 5 %, on average."""
    for problem, printed, tolerance in (
        (thesis_full_nodes(figure), random, 0.1),
        (thesis_per_gpu(figure), per_gpu, 0.05),
    ):
        found = [dispatch(problem, POLICIES["random"], seed=seed).makespan for seed in range(10)]
        assert fmean(found) == pytest.approx(printed, rel=tolerance)


@pytest.mark.parametrize(("figure", "milp"), [("4.1", 7967.0), ("4.2", 5255.36), ("4.3", 8994.59)])
def test_thesis_bounds_lie_just_below_its_unfinished_solver(figure: str, milp: float) -> None:
    """Stopped at 300 s, the thesis's MILP was above the bound, by less than half a per cent."""
    assert 0.995 * milp < lower_bound(thesis(figure)) <= milp


def test_a_sub_epoch_of_the_thesis_follows_equation_4_15() -> None:
    """Time per shard and GPU, times the shards of the node, over the GPUs used, or the speed-up they give."""
    shard = thesis_per_gpu("4.2").strategies[0][0][0].seconds
    linear = {parallel_plan.gpus: parallel_plan.seconds for parallel_plan in thesis("4.2").strategies[0][0]}
    assert linear == {1: 4 * shard, 2: 2 * shard, 4: shard}
    slower = {
        parallel_plan.gpus: parallel_plan.seconds
        for parallel_plan in thesis("4.2", SUBLINEAR).strategies[0][0]
    }
    assert slower == {1: 4 * shard, 2: round(4 * shard / 1.8), 4: round(4 * shard / 3.2)}


def test_networks_have_the_printed_mean_and_deviation() -> None:
    """Section 5.4 prints 35 networks from 360 to 21000, mean 5939 and standard deviation 5671."""
    assert (len(_NETWORKS), min(_NETWORKS), max(_NETWORKS)) == (35, 360, 21000)
    assert fmean(_NETWORKS) == pytest.approx(5939, rel=0.001)
    assert pstdev(_NETWORKS) == pytest.approx(5671, rel=0.001)


def test_homogeneous_means_equal() -> None:
    """All sub-epoch times of the homogeneous problem are the same."""
    assert len({seconds for row in _times(paper(16, 8, heterogeneous=False)) for seconds in row}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_balanced_means_equal_sums(seed: int) -> None:
    """All rows sum up to the same, and all columns, although the times differ."""
    times = _times(balanced(20, 16, seed))
    assert {sum(row) for row in times} == {1600.0}
    assert {sum(column) for column in zip(*times, strict=True)} == {2000.0}
    assert len({seconds for row in times for seconds in row}) > 50


def test_narrow_means_nearly_equal() -> None:
    """Sub-epochs differ by the model's 15 % and the worker's 5 % at most."""
    seconds = [value for row in _times(narrow(16, 16)) for value in row]
    assert 0.85 * 0.95 * 1000 <= min(seconds) < max(seconds) <= 1.15 * 1.05 * 1000


def test_an_unknown_scenario_is_named() -> None:
    """The error says what to do."""
    with pytest.raises(InstanceError, match=r"'thesis-5'.*--list"):
        find("thesis-5")
