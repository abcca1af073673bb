"""CP-SAT against exhaustive search, and its behaviour with time limits, hints and rounding."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.exact import TOLERANCE, SolverUnavailableError, search, solve_exact
from cerebro.scheduling.exact.cpsat import Programme
from cerebro.scheduling.exact.required_sub_epochs import required_sub_epochs
from cerebro.scheduling.exact.ticks import Ticks
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.assumed import saturn
from research.problems import multi_gpu, open_shop
from research.rearrangement import rearrange
from tests.scheduling.brute import optimal_makespan
from tests.scheduling.instances import multi_gpu_problems, open_shops, problems
from tests.scheduling.ticking import Ticking

Square = tuple[tuple[int, ...], ...]

ENOUGH_S = 60.0

GAPPED = open_shop([[34, 2, 54, 61], [15, 89, 70, 9], [38, 19, 28, 87], [95, 7, 34, 29]])
"""Taillard's first 4 x 4 instance: the optimum is 193, above the bound of 186."""


def squares(times: range) -> Iterator[Square]:
    """Return the 3 x 3 instances over those times, one for each class under transposition and permutation of
    rows and columns."""
    for entries in product(times, repeat=9):
        square = (entries[:3], entries[3:6], entries[6:])
        if square == min(_images(square)):
            yield square


def _images(square: Square) -> Iterator[Square]:
    for turned in (square, tuple(zip(*square, strict=True))):
        for order in permutations(range(3)):
            yield tuple(sorted(tuple(row[j] for j in order) for row in turned))


def check(problem: Problem) -> None:
    """Check that CP-SAT's schedule is valid, proven optimal and as short as exhaustive search finds."""
    result = solve_exact(problem, time_limit_s=ENOUGH_S, solver="cp-sat")
    assert result.schedule is not None
    validate(problem, result.schedule).check()
    assert result.is_optimal
    assert result.schedule.makespan == pytest.approx(optimal_makespan(problem), rel=1e-9)
    assert result.lower_bound == pytest.approx(result.schedule.makespan, rel=TOLERANCE)


def test_sampled_three_by_three_instances_equal_brute_force() -> None:
    """200 instances over times of 1 to 4 seconds."""
    entries = random.Random(0).choices(range(1, 5), k=9 * 200)
    for at in range(0, len(entries), 9):
        check(open_shop([entries[at + row : at + row + 3] for row in (0, 3, 6)]))


@pytest.mark.slow
@pytest.mark.commands
def test_all_three_by_three_instances_over_a_grid_equal_brute_force() -> None:
    for square in squares(range(1, 5)):
        check(open_shop(square))


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=4, max_size=4))
def test_four_by_four_instances_equal_brute_force(times: list[list[int]]) -> None:
    check(open_shop(times))


@settings(deadline=None, max_examples=60)
@given(multi_gpu_problems())
def test_multi_gpu_instances_equal_brute_force(problem: Problem) -> None:
    """Tests the optional intervals and the cumulative constraint."""
    check(problem)


@settings(deadline=None, max_examples=60)
@given(problems(max_models=3, max_workers=2, max_partitions=2, max_gpus=2, max_parallel_plans=2))
def test_half_done_and_replicated_instances_equal_brute_force(problem: Problem) -> None:
    """Replicas, sizes, epochs, finished sub-epochs, and models and workers that become ready later."""
    check(problem)


@settings(deadline=None, max_examples=30)
@given(open_shops(max_models=3, max_workers=3, times=st.floats(0.001, 1000.0)))
def test_fractional_times_are_solved_to_the_stated_tolerance(problem: Problem) -> None:
    """Times are rounded down to a grid; the makespan matches brute force within the tolerance."""
    result = solve_exact(problem, time_limit_s=ENOUGH_S, solver="cp-sat")
    assert result.schedule is not None
    validate(problem, result.schedule).check()
    assert result.is_optimal
    assert result.schedule.makespan == pytest.approx(optimal_makespan(problem), rel=TOLERANCE)
    assert result.lower_bound <= optimal_makespan(problem) * (1 + 1e-12)


def test_counting_long_sub_epochs_tightens_the_bound() -> None:
    """Three sub-epochs of 6 s on 2 GPUs take 12 s, or 10 s if one uses both; GPU-seconds alone allow 9 s."""
    problem = multi_gpu([2], {name: {0: {1: 6.0, 2: 4.0}} for name in "abc"})
    result = solve_exact(problem, time_limit_s=ENOUGH_S)
    assert result.schedule is not None
    assert result.schedule.makespan == result.lower_bound == optimal_makespan(problem) == 10.0


def test_the_solver_stops_by_the_injected_clock() -> None:
    """CP-SAT does not know this clock: a search of hours ends after a few readings."""
    problem = saturn("img", "8+4", is_hopping=True)
    result = search.solve(problem, time_limit_s=8, clock=Ticking())
    assert result.schedule is not None
    validate(problem, result.schedule).check()
    assert not result.is_optimal
    assert "stopped" in result.note


def test_an_expired_time_limit_returns_the_hint_with_a_note() -> None:
    """The result is the hint with a valid bound and no claim of optimality."""
    hint = rearrange(GAPPED)
    result = solve_exact(GAPPED, time_limit_s=1e-6, hint=hint)
    assert result.schedule is not None
    assert result.schedule.makespan <= hint.makespan
    assert lower_bound(GAPPED) <= result.lower_bound <= result.schedule.makespan
    assert not result.is_optimal
    assert "stopped" in result.note


def test_without_ortools_a_request_by_name_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(SolverUnavailableError, match="OR-Tools"):
        solve_exact(GAPPED, time_limit_s=1.0, solver="cp-sat")


def test_without_any_solver_the_hint_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers are optional: the hint is the answer, and the note names the missing packages."""
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    hint = rearrange(GAPPED)
    result = solve_exact(GAPPED, time_limit_s=1.0, hint=hint)
    assert result.schedule == hint
    assert result.solver == "none"
    assert "OR-Tools" in result.note
    assert "Gurobi" in result.note


@pytest.mark.commands
def test_solvers_are_imported_on_use() -> None:
    """OR-Tools and Gurobi are optional and slow to import."""
    code = "import sys, cerebro.scheduling.exact; sys.exit('ortools' in sys.modules or 'gurobipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.floats(1e-6, 1e6), st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5))
def test_a_bound_in_ticks_is_a_bound_in_seconds(horizon: float, times: list[float]) -> None:
    """Converted back, the ticks of any set of times are at most the sum of the times."""
    horizon = max(horizon, sum(times))
    ticks = Ticks.fitting(times, horizon)
    total = sum(ticks.length(seconds) for seconds in times)
    assert ticks.bound(total, times) <= sum(times) * (1 + 1e-9)


def test_a_hint_selects_one_option_for_each_sub_epoch_of_equal_models() -> None:
    """Equal models may be renamed, because the second one starts first."""
    problem = open_shop([[2.0, 2.0], [2.0, 2.0]], [[0, 1], [0, 1]])
    needed = required_sub_epochs(problem)
    second_first = sorted(needed, key=lambda sub_epoch: -sub_epoch.model)
    known = [min(sub_epoch.options, key=lambda option: option.seconds) for sub_epoch in second_first]
    programme = Programme(problem, needed, Ticks.fitting([2.0], 8.0), known, 0.0)
    programme.add_times()
    programme.add_hint()
    hint = programme.cp.proto.solution_hint
    hinted = dict(zip(hint.vars, hint.values, strict=True))
    for uses in programme.uses.values():
        assert sum(hinted[use.taken.index] for use in uses if not isinstance(use.taken, int)) == 1
