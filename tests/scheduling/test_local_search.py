"""The planner's local searches: valid candidates with correct makespans that improve."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.planning.decoder import Decoder, to_schedule
from cerebro.scheduling.planning.local_search import Candidate, search_priorities, search_rotations
from cerebro.scheduling.planning.order_search import search_orders
from cerebro.scheduling.planning.plan_table import plan_tables
from cerebro.scheduling.planning.rotation import is_open_shop
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.problems import open_shop
from tests.scheduling.instances import open_shops, problems


def check(problem: Problem, found: Candidate) -> None:
    """Check that the candidate is a valid schedule with its stated makespan."""
    schedule = to_schedule(problem, found.plan_table, found.starts)
    validate(problem, schedule).check()
    assert schedule.makespan == pytest.approx(found.makespan)


@settings(deadline=None, max_examples=25)
@given(problem=problems(max_models=5, max_gpus=3, max_parallel_plans=2), seed=st.integers(0, 99))
def test_the_search_over_priorities_returns_valid_schedules(problem: Problem, seed: int) -> None:
    """The search covers priorities and parallel plans."""
    for found in itertools.islice(search_priorities(problem, plan_tables(problem), random.Random(seed)), 120):
        if found is not None:
            check(problem, found)


@settings(deadline=None, max_examples=25)
@given(problem=problems(max_models=4, max_gpus=4, max_parallel_plans=3), seed=st.integers(0, 99))
def test_the_search_over_orders_returns_valid_and_shorter_schedules(problem: Problem, seed: int) -> None:
    """Each candidate is shorter than the one before, also with half-done epochs and replicas."""
    tables = plan_tables(problem)
    start = next(c for c in search_priorities(problem, tables, random.Random(seed)) if c is not None)
    best = start.makespan
    for found in itertools.islice(search_orders(problem, start, random.Random(seed)), 40):
        if found is not None:
            check(problem, found)
            assert found.makespan < best
            best = found.makespan


@settings(deadline=None, max_examples=25)
@given(problem=problems(max_models=5), seed=st.integers(0, 99))
def test_the_search_over_rotations_returns_valid_schedules(problem: Problem, seed: int) -> None:
    """The search needs one worker for each partition."""
    decoder = Decoder(problem, plan_tables(problem)["full node"])
    if is_open_shop(decoder):
        for found in itertools.islice(search_rotations(decoder, random.Random(seed)), 60):
            if found is not None:
                check(problem, found)


@settings(deadline=None, max_examples=20)
@given(problem=open_shops(max_models=6, max_workers=5))
def test_each_candidate_improves(problem: Problem) -> None:
    """After the two sorted rotations and the first restart, a search yields only improvements."""
    rng = random.Random(0)
    rotations = [
        c
        for c in itertools.islice(
            search_rotations(Decoder(problem, plan_tables(problem)["full node"]), rng), 2, 200
        )
        if c
    ]
    priorities = [
        c for c in itertools.islice(search_priorities(problem, plan_tables(problem), rng), 200) if c
    ]
    for found in (rotations, priorities):
        assert all(later.makespan < earlier.makespan for earlier, later in itertools.pairwise(found))


def test_an_aborted_decoding_would_exceed_the_cutoff() -> None:
    """A cutoff at or above the makespan gives the same schedule; a lower cutoff gives none."""
    rng = random.Random(2)
    problem = open_shop([[rng.uniform(1, 9) for _ in range(5)] for _ in range(8)])
    decoder = Decoder(problem, plan_tables(problem)["full node"])
    priority = [[0.0] * (problem.num_models + 1)] * (problem.num_workers + 1)
    whole = decoder.dispatch(priority)
    assert whole is not None
    assert decoder.dispatch(priority, cutoff=whole.makespan * (1 + 1e-12)) == whole
    assert decoder.dispatch(priority, cutoff=whole.makespan * (1 - 1e-6)) is None
