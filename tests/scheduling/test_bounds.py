"""Lower bounds against the optimum of tiny instances and against known values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.problem import Problem, TimedPlan
from research.problems import multi_gpu, open_shop
from tests.scheduling.brute import all_makespans, optimal_makespan
from tests.scheduling.instances import multi_gpu_problems, open_shops, problems

ROUNDING = 1 + 1e-9


@given(open_shops(max_models=3, max_workers=3))
@settings(deadline=None, max_examples=60)
def test_the_bound_of_an_open_shop_is_its_largest_row_or_column(problem: Problem) -> None:
    """LB = max(largest row sum, largest column sum), and no schedule is shorter."""
    times = [[parallel_plan.seconds for (parallel_plan,) in row] for row in problem.parallel_plans]
    columns = [sum(column) for column in zip(*times, strict=True)]
    assert lower_bound(problem) == max(*map(sum, times), *columns)
    assert lower_bound(problem) <= optimal_makespan(problem)


@given(problems(max_models=2, max_workers=3, max_partitions=3, max_epochs=2))
@settings(deadline=None, max_examples=150)
def test_no_schedule_beats_the_bound(problem: Problem) -> None:
    """Replicas, sizes, epochs, half-done epochs and ready times."""
    if problem.num_sub_epochs <= 7:
        assert lower_bound(problem) <= optimal_makespan(problem) * ROUNDING


@given(
    problems(max_models=3, max_workers=2, max_partitions=2, max_gpus=4, max_parallel_plans=3, max_epochs=1)
)
@settings(deadline=None, max_examples=150)
def test_no_schedule_with_several_gpus_beats_the_bound(problem: Problem) -> None:
    """Several GPUs per worker, several parallel plans and ready times."""
    assert lower_bound(problem) <= optimal_makespan(problem) * ROUNDING


@given(multi_gpu_problems(max_models=2))
@settings(deadline=None, max_examples=40)
def test_pruning_loses_no_optimal_schedule(problem: Problem) -> None:
    """Pruned and complete brute-force searches find the same optimum."""
    if problem.num_sub_epochs <= 4:
        assert optimal_makespan(problem) == min(all_makespans(problem))


def test_holders_share_the_work_of_a_replicated_partition() -> None:
    """Eight models of 1 s on a partition with two holders take 4 s; a third worker does not help."""
    problem = open_shop([[1.0] * 3] * 8, available=[[0, 1]])
    assert lower_bound(problem) == pytest.approx(4)


def test_the_bound_combines_rows_and_columns() -> None:
    """One model is fastest on all GPUs, all models together on few; the bound includes this conflict.

    It takes 10 s on one GPU or 8 s on two: the largest row is 16 s, and the largest column 15 s.
    """
    runtimes = {name: {node: {1: 10.0, 2: 8.0} for node in (0, 1)} for name in "abc"}
    problem = multi_gpu([2, 2], runtimes)
    assert lower_bound(problem) > 16
    assert lower_bound(problem) <= optimal_makespan(problem)


def test_fixed_time_counts_for_each_sub_epoch() -> None:
    """Two models and two halves of the data on one worker: four sub-epochs of 0.5 s work and 2 s fixed time each."""
    parallel_plans = ((TimedPlan(seconds=1.0, fixed=2.0),),)
    problem = Problem(
        models=("a", "b"),
        workers=("w",),
        gpus=(1,),
        parallel_plans=(parallel_plans, parallel_plans),
        holders=((0,), (0,)),
        sizes=(0.5, 0.5),
    )
    assert lower_bound(problem) == 10
