"""Problem construction and its error messages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from cerebro.errors import InstanceError
from cerebro.scheduling.problem import Problem, TimedPlan
from research.problems import is_open_shop, multi_gpu, open_shop
from tests.scheduling.instances import open_shops, problems

SQUARE = open_shop([[1.0, 2.0], [3.0, 4.0]])


def test_an_open_shop_has_partition_j_on_worker_j() -> None:
    """The paper's table: one parallel plan, one GPU, one holder."""
    assert is_open_shop(SQUARE)
    assert SQUARE.holders == ((0,), (1,))
    assert SQUARE.gpus == (1, 1)
    assert [[SQUARE.seconds(m, p, p) for p in (0, 1)] for m in (0, 1)] == [[1, 2], [3, 4]]
    assert SQUARE.num_sub_epochs == 4


@given(open_shops())
@settings(deadline=None, max_examples=30)
def test_any_square_problem_is_an_open_shop(problem: Problem) -> None:
    assert is_open_shop(problem)
    assert problem.is_single


@given(problems(max_gpus=3, max_parallel_plans=3))
@settings(deadline=None, max_examples=50)
def test_each_sub_epoch_has_a_place(problem: Problem) -> None:
    """Each problem that passes its checks can be scheduled."""
    for model in range(problem.num_models):
        for partition in range(problem.num_partitions):
            places = problem.places(model, partition)
            assert places
            assert set(places) <= set(problem.holders[partition])


def test_parallel_plans_can_be_fixed() -> None:
    """The result has one parallel plan for each model and worker, or none if the model did not fit."""
    problem = Problem(
        models=("a", "b"),
        workers=("x", "y"),
        gpus=(2, 1),
        parallel_plans=(
            ((TimedPlan(seconds=2.0), TimedPlan(seconds=1.0, gpus=2)), ()),
            ((TimedPlan(seconds=3.0),), (TimedPlan(seconds=4.0),)),
        ),
        holders=((0, 1),),
    )
    chosen = problem.with_parallel_plans([[1, -1], [0, 0]])
    assert not problem.is_single
    assert chosen.is_single
    assert chosen.parallel_plans[0] == ((TimedPlan(seconds=1.0, gpus=2),), ())
    assert chosen.parallel_plans[1] == problem.parallel_plans[1]


def test_nodes_and_runtimes_form_a_problem() -> None:
    """Table 4.1 of the thesis: each node holds a partition; parallel plans ascend by number of GPUs."""
    problem = multi_gpu([2, 1], {"m": {0: {2: 6.0, 1: 10.0}, 1: {1: 9.0}}})
    assert problem.models == ("m",)
    assert problem.gpus == (2, 1)
    assert [parallel_plan.gpus for parallel_plan in problem.parallel_plans[0][0]] == [1, 2]
    assert problem.seconds(0, 0, 0, 1) == 6


@pytest.mark.parametrize(
    ("times", "available", "said"),
    [
        ([], None, "there are no models"),
        ([[]], None, "there are no workers"),
        ([[1.0]], [], "there are no partitions"),
        ([[1.0, 2.0], [1.0]], None, r"times\[1\] has 1 entries, but times\[0\] has 2"),
        ([[0.0]], None, "the time of model 'm0' on worker-0 is 0.0, expected a finite number above 0"),
        ([[-1.0]], None, "expected a finite number above 0"),
        ([[math.nan]], None, "expected a finite number above 0"),
        ([[math.inf]], None, "expected a finite number above 0"),
        ([[1.0]], [[]], "partition 0 is held by no worker"),
        ([[1.0]], [[1]], "partition 0 is held by worker 1, expected a worker from 0 to 0"),
        ([[1.0]], [[-1]], "partition 0 is held by worker -1"),
    ],
)
def test_invalid_times_are_named(
    times: list[list[float]], available: list[list[int]] | None, said: str
) -> None:
    """Empty axes, ragged rows, invalid times and partitions without a holder."""
    with pytest.raises(InstanceError, match=said):
        open_shop(times, available)


@pytest.mark.parametrize(
    ("nodes", "runtimes", "said"),
    [
        ([1], {}, "there are no models"),
        ([], {"m": {}}, "there are no workers"),
        ([0], {"m": {0: {1: 1.0}}}, "node-0 has 0 GPUs"),
        ([1], {"m": {1: {1: 1.0}}}, "model 'm' has runtimes for node 1, expected a node from 0 to 0"),
        ([1], {"m": {0: {2: 1.0}}}, "model 'm' on node-0 asks for 2 GPUs"),
        ([1], {"m": {0: {0: 1.0}}}, "model 'm' on node-0 asks for 0 GPUs"),
        ([1, 1], {"m": {0: {1: 1.0}}}, "model 'm' fits on no worker that holds partition 1"),
    ],
)
def test_invalid_runtimes_are_named(
    nodes: list[int], runtimes: dict[str, dict[int, dict[int, float]]], said: str
) -> None:
    """Unknown nodes, impossible GPU counts and models that fit on no node."""
    with pytest.raises(InstanceError, match=said):
        multi_gpu(nodes, runtimes)


@pytest.mark.parametrize(
    ("gang", "said"),
    [
        (TimedPlan(workers=1, seconds=1.0), "has 1 workers, expected at least 2"),
        (
            TimedPlan(workers=3, seconds=1.0),
            "has 3 workers, expected at least 2, and no more than there are workers",
        ),
        (TimedPlan(workers=2, seconds=0.0), "the time of a gang for model 'm0' is 0"),
        (TimedPlan(workers=2, seconds=1.0, fixed=-1.0), "the fixed time of a gang"),
        (TimedPlan(workers=2, seconds=1.0, gpus=2), "asks for 2 GPUs of 2 workers, but 0 have so many"),
    ],
)
def test_invalid_gangs_are_named(gang: TimedPlan, said: str) -> None:
    """Each member needs a partition and GPUs."""
    with pytest.raises(InstanceError, match=said):
        replace(open_shop([[1.0, 1.0]]), gangs=((gang,),))
    with pytest.raises(InstanceError, match="gangs has 2 entries, expected 1"):
        replace(open_shop([[1.0, 1.0]]), gangs=((), ()))
