"""The controller's core in virtual time obeys the scheduling rules and matches the simulation engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.conditions import Conditions, Join, Outage, Reality, Straggler
from cerebro.scheduling.dispatch import CALM, dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.core_simulation import run
from research.problems import open_shop
from research.scenarios import find, narrow, paper
from research.solve import PLANNER

_LEASES = 4
"""Lease renewals in a sub-epoch. Fewer than in production: heartbeats dominate the run time and these tests
do not depend on them."""


@st.composite
def live_problems(draw: st.DrawFn) -> Problem:
    """Generate a fit run with any number of models, partitions, replicas, devices and epochs."""
    models, workers, partitions = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    times = st.lists(st.integers(1, 9).map(float), min_size=workers, max_size=workers)
    held = st.lists(st.integers(0, workers - 1), min_size=1, unique=True).map(sorted)
    problem = open_shop(
        draw(st.lists(times, min_size=models, max_size=models)),
        draw(st.lists(held, min_size=partitions, max_size=partitions)),
        epochs=draw(st.integers(1, 2)),
        sizes=draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=partitions, max_size=partitions)),
    )
    gpus = st.lists(st.sampled_from((1, 1, 2, 3)), min_size=workers, max_size=workers)
    return replace(problem, gpus=tuple(draw(gpus)), gpu_ready=())


@st.composite
def befallen(draw: st.DrawFn) -> tuple[Problem, Conditions]:
    """Generate a fit run with noise, a slow worker, a lost worker and a late worker."""
    problem = draw(live_problems())
    worker, moment = st.integers(0, problem.num_workers - 1), st.integers(1, 30).map(float)
    slow = st.builds(
        Straggler, worker=worker, factor=st.sampled_from((0.5, 3.0)), start=moment, seconds=moment
    )
    return problem, Conditions(
        sigma=draw(st.sampled_from((0.0, 0.3))),
        stragglers=tuple(draw(st.lists(slow, max_size=1))),
        outages=tuple(
            draw(st.lists(st.builds(Outage, worker=worker, start=moment, seconds=moment), max_size=2))
        ),
        joins=tuple(draw(st.lists(st.builds(Join, worker=worker, at=moment), max_size=1))),
    )


@pytest.mark.parametrize(
    "policy",
    ["lrptw", PLANNER, *(pytest.param(p, marks=pytest.mark.slow) for p in POLICIES if p != "lrptw")],
)
@settings(deadline=None, max_examples=6)
@given(case=befallen(), seed=st.integers(0, 9))
def test_the_core_obeys_every_scheduling_rule(
    policy: str, case: tuple[Problem, Conditions], seed: int
) -> None:
    """Each sub-epoch is committed exactly once, on a valid worker and in order."""
    problem, conditions = case
    validate(problem, run(problem, policy, seed, conditions, leases=_LEASES), actual=True).check()


@settings(deadline=None, max_examples=10)
@given(problem=live_problems())
def test_sub_epochs_have_the_durations_of_the_problem(problem: Problem) -> None:
    """Without disturbances, durations and the bound equal the problem's."""
    validate(problem, run(problem, "lrptw", 0, CALM, leases=_LEASES)).check()


@pytest.mark.parametrize(
    "problem",
    [
        paper(16, 8, heterogeneous=False),
        pytest.param(paper(16, 16, heterogeneous=False), marks=pytest.mark.slow),
        narrow(4, 8),
        narrow(8, 8),
        replace(paper(16, 4, heterogeneous=False), gpus=(2,) * 4, gpu_ready=()),
        pytest.param(
            replace(paper(24, 4, heterogeneous=False), gpus=(4, 2, 1, 1), gpu_ready=()),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["hom-16x8", "hom-16x16", "few-4x8", "narrow-8x8", "hom-16x4-of-2", "hom-24x4-of-1-to-4"],
)
def test_core_and_engine_agree(problem: Problem) -> None:
    """Known durations and queued sub-epochs make no difference here, so makespans agree within 1 %."""
    engine = dispatch(problem, POLICIES["lrptw"]).makespan
    assert run(problem, "lrptw", 0, CALM, leases=_LEASES).makespan == pytest.approx(engine, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["online-noise-32x16", "online-straggler-32x16", "online-join-32x16"])
def test_core_and_engine_agree_under_disturbances(name: str) -> None:
    """With the same noise, straggler and late worker, makespans agree within 1 % and respect the same bound."""
    scenario, problem = find(name), narrow(24, 8)
    assert scenario.conditions is not None
    conditions = scenario.conditions(problem)
    found = run(problem, "lrptw", 0, conditions)
    assert found.makespan == pytest.approx(
        dispatch(problem, POLICIES["lrptw"], conditions=conditions).makespan, rel=0.01
    )
    assert found.makespan >= Reality(problem, conditions, 0).bound() * (1 - 1e-9)


def test_the_other_holder_takes_over_a_lost_partition() -> None:
    """Worker 0 never returns, so worker 1 serves all models."""
    problem = open_shop([[10.0, 10.0]] * 3, [[0, 1], [0, 1]])
    conditions = Conditions(outages=(Outage(worker=0, start=15.0),))
    found = run(problem, "lrptw", 0, conditions)
    validate(problem, found, actual=True).check()
    assert all(sub_epoch.worker == 1 for sub_epoch in found.sub_epochs if sub_epoch.end > 15.0)
