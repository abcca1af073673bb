"""Plan tables: the parallel plan of each model on each worker."""

from __future__ import annotations

from hypothesis import given, settings

from cerebro.scheduling.planning.plan_table import (
    allowed,
    alternatives,
    has_choice,
    of_schedule,
    plan_tables,
)
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.problem import Problem, undominated
from research.problems import multi_gpu
from tests.scheduling.instances import problems
from tests.scheduling.ticking import Ticking


def gpus(problem: Problem, name: str) -> list[list[int]]:
    """Return the GPUs of each model on each worker in the named plan table."""
    table = plan_tables(problem)[name]
    return [[problem.parallel_plans[m][w][s].gpus for w, s in enumerate(row)] for m, row in enumerate(table)]


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_gpus=4, max_parallel_plans=3))
def test_every_sub_epoch_has_a_place_in_every_plan_table(problem: Problem) -> None:
    """The property survives a change of one entry."""
    for table in plan_tables(problem).values():
        for m in range(problem.num_models):
            for w in range(problem.num_workers):
                for other in (table[m][w], *alternatives(problem, table, m, w)):
                    row = [*table[m][:w], other, *table[m][w + 1 :]]
                    assert all(allowed(problem, row, p) for p in range(problem.num_partitions))


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_gpus=2, max_parallel_plans=2))
def test_alternatives_exist_only_with_a_choice_of_plans(problem: Problem) -> None:
    table = plan_tables(problem)["full node"]
    some = any(
        alternatives(problem, table, m, w)
        for m in range(problem.num_models)
        for w in range(problem.num_workers)
    )
    assert has_choice(problem) or not some


def test_only_the_longest_models_get_more_gpus() -> None:
    """One long model sets the bound, so it alone gets more GPUs."""
    parallel_plans = {1: 1.0, 2: 0.6}
    runtimes = {
        name: {node: {g: seconds * parallel_plans[g] for g in parallel_plans} for node in range(2)}
        for name, seconds in (("long", 10.0), *((f"short{i}", 2.0) for i in range(8)))
    }
    assert gpus(multi_gpu([2, 2], runtimes), "mixed") == [[2, 2], *[[1, 1]] * 8]


def test_filling_assigns_all_gpus_to_the_models_that_gain_most() -> None:
    """Four models run at once on two nodes of four GPUs and use all eight."""
    parallel_plans = {1: 1.0, 2: 0.6, 4: 0.4}
    runtimes = {
        name: {node: {g: seconds * parallel_plans[g] for g in parallel_plans} for node in range(2)}
        for name, seconds in (("a", 8.0), ("b", 8.0), ("c", 1.0), ("d", 1.0))
    }
    assert gpus(multi_gpu([4, 4], runtimes), "fill") == [[4, 4], [2, 2], [1, 1], [1, 1]]


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_gpus=4, max_parallel_plans=3))
def test_a_dominated_parallel_plan_is_not_needed(problem: Problem) -> None:
    """For each removed parallel plan, another is as fast on as few GPUs."""
    kept = undominated(problem)
    for before, after in zip(problem.parallel_plans, kept.parallel_plans, strict=True):
        for parallel_plans, rest in zip(before, after, strict=True):
            assert set(rest) <= set(parallel_plans)
            for parallel_plan in parallel_plans:
                assert any(
                    o.gpus <= parallel_plan.gpus
                    and o.seconds <= parallel_plan.seconds
                    and o.fixed <= parallel_plan.fixed
                    for o in rest
                )


@settings(deadline=None, max_examples=20)
@given(problem=problems(max_gpus=3, max_parallel_plans=3))
def test_the_plan_table_of_a_schedule_permits_it(problem: Problem) -> None:
    """The problem with those parallel plans permits the schedule."""
    found = plan(problem, time_limit_s=60, clock=Ticking())
    table = of_schedule(problem, found.schedule)
    for sub_epoch in found.schedule.sub_epochs:
        parallel_plan = problem.parallel_plans[sub_epoch.model][sub_epoch.worker][
            table[sub_epoch.model][sub_epoch.worker]
        ]
        assert (parallel_plan.gpus, parallel_plan.technique) == (sub_epoch.gpus, sub_epoch.technique)
