from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.conditions import Conditions, Outage
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement
from cerebro.scheduling.validator import validate
from research.problems import open_shop
from tests.scheduling.instances import problems

TWO = open_shop([[5.0, 5.0], [5.0, 5.0]])


@st.composite
def planned(draw: st.DrawFn) -> tuple[Problem, Following]:
    """Generate a problem and a plan with some of its sub-epochs in any order, sensible or not."""
    problem = draw(problems(max_partitions=3, max_gpus=2))
    sub_epochs = [
        Placement(draw(st.sampled_from(problem.places(model, partition))), model, partition, epoch)
        for model in range(problem.num_models)
        for partition in range(problem.num_partitions)
        for epoch in range(1, problem.epochs + 1)
    ]
    order = draw(st.permutations(sub_epochs))
    return problem, Following(order[: draw(st.integers(0, len(order)))])


@settings(max_examples=30, deadline=None)
@given(problem=problems(max_models=5, max_partitions=4, max_gpus=2), name=st.sampled_from(sorted(POLICIES)))
def test_a_followed_plan_ends_no_later_than_planned(problem: Problem, name: str) -> None:
    """Without noise each sub-epoch starts no later than in the plan, on the same worker."""
    plan = dispatch(problem, POLICIES[name], seed=1)
    followed = dispatch(problem, Following.of(plan))
    start = {(u.model, u.epoch, u.partition, u.worker): u.start for u in plan.sub_epochs}
    for u in followed.sub_epochs:
        assert u.start <= start[u.model, u.epoch, u.partition, u.worker] + 1e-6


@settings(max_examples=30, deadline=None)
@given(case=planned(), sigma=st.sampled_from((0.0, 0.3)), down=st.integers(0, 2), at=st.integers(0, 9))
def test_no_plan_can_block_a_run(case: tuple[Problem, Following], sigma: float, down: int, at: int) -> None:
    """With any order and an absent worker, each sub-epoch runs once."""
    problem, following = case
    outage = Outage(worker=down % problem.num_workers, start=float(at), seconds=7.0)
    schedule = dispatch(problem, following, conditions=Conditions(sigma=sigma, outages=(outage,)))
    validate(problem, schedule, actual=True).check()


def test_a_worker_waits_for_its_models_turn() -> None:
    """Worker 1 could start the idle model 0, but in the plan worker 0 has it first."""
    following = Following([Placement(0, 1, 0), Placement(0, 0, 0), Placement(1, 0, 1), Placement(1, 1, 1)])
    schedule = dispatch(TWO, following)
    assert [(sub_epoch.worker, sub_epoch.model, sub_epoch.start) for sub_epoch in schedule.sub_epochs] == [
        (0, 1, 0.0),
        (0, 0, 5.0),
        (1, 0, 10.0),
        (1, 1, 15.0),
    ]


def test_sub_epochs_of_a_lost_worker_are_dispatched_to_other_holders() -> None:
    """The plan uses worker 0 only; after its loss, worker 1, the other holder, runs the sub-epochs."""
    problem = open_shop([[10.0, 10.0], [10.0, 10.0]], available=[[0, 1]])
    plan = Following([Placement(0, 0, 0), Placement(0, 1, 0)])
    assert dispatch(problem, plan).makespan == 20.0
    lost = dispatch(problem, plan, conditions=Conditions(outages=(Outage(worker=0, start=5.0),)))
    assert [(sub_epoch.worker, sub_epoch.start) for sub_epoch in lost.sub_epochs] == [(1, 5.0), (1, 15.0)]


@pytest.mark.parametrize("name", ["cyclic", "lrptw"])
def test_a_tight_plan_is_reached_exactly(name: str) -> None:
    """With 8 near-equal models and workers, the run reaches the plan's makespan exactly."""
    rng = random.Random(4)
    workers = [rng.uniform(0.95, 1.05) for _ in range(8)]
    models = [rng.uniform(0.85, 1.15) for _ in range(8)]
    problem = open_shop([[a * b for b in workers] for a in models])
    plan = dispatch(problem, POLICIES[name])
    assert dispatch(problem, Following.of(plan)).makespan == pytest.approx(plan.makespan)
