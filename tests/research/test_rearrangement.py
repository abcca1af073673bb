"""Vector rearrangement and its guarantee (seed paper, section 5.2)."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.validator import validate
from research import rearrangement
from research.problems import open_shop
from research.rearrangement import balanced_order, is_surely_optimal, rearrange
from tests.scheduling.brute import optimal_makespan
from tests.scheduling.instances import open_shops

Times = list[list[float]]

ENTRIES = st.one_of(st.integers(1, 20).map(float), st.floats(0.01, 20.0))


@st.composite
def matrices(draw: st.DrawFn, max_models: int = 20, max_workers: int = 5) -> Times:
    width = draw(st.integers(1, max_workers))
    return draw(st.lists(st.lists(ENTRIES, min_size=width, max_size=width), min_size=1, max_size=max_models))


@st.composite
def many_models(draw: st.DrawFn) -> Times:
    """Generate barely enough models for the optimality condition."""
    width = draw(st.integers(1, 4))
    times = draw(st.lists(st.lists(ENTRIES, min_size=width, max_size=width), min_size=1, max_size=8))
    while not is_surely_optimal(times):
        times = [*times, *times[: draw(st.integers(1, len(times)))]]
    return times


def loads(times: Times) -> list[float]:
    return [sum(column) for column in zip(*times, strict=True)]


@settings(deadline=None, max_examples=80)
@given(many_models())
def test_the_largest_load_is_met_if_the_condition_holds(times: Times) -> None:
    """If L_max >= (p^2 + p - 1) T_max, the schedule has length L_max, which is optimal."""
    problem = open_shop(times)
    report = validate(problem, rearrange(problem)).check()
    assert report.makespan == pytest.approx(max(loads(times)), rel=1e-9)


@settings(deadline=None, max_examples=80)
@given(matrices())
def test_the_additive_guarantee_holds_always(times: Times) -> None:
    """Each open shop gets a schedule of at most L_max + (p - 1) T_max, hence at most C* + (p - 1) T_max."""
    problem = open_shop(times)
    report = validate(problem, rearrange(problem)).check()
    longest = max(map(max, times))
    assert report.makespan <= (max(loads(times)) + (len(times[0]) - 1) * longest) * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(open_shops(max_models=3, max_workers=3))
def test_the_additive_guarantee_holds_against_the_true_optimum(problem) -> None:  # type: ignore[no-untyped-def]
    """The makespan is at most C* + (p - 1) T_max, with C* by exhaustive search."""
    longest = max(
        parallel_plan.seconds
        for row in problem.parallel_plans
        for parallel_plans in row
        for parallel_plan in parallel_plans
    )
    slack = (problem.num_workers - 1) * longest
    assert rearrange(problem).makespan <= optimal_makespan(problem) + slack


@settings(deadline=None, max_examples=40)
@given(matrices(max_models=25), st.booleans())
def test_prefix_loads_stay_balanced(times: Times, is_greedy_barred: bool) -> None:
    """With equal column sums, no two columns differ by more than (p - 1) T_max after any row."""
    longest = max(map(max, times))
    lacking = [max(loads(times)) - load for load in loads(times)]
    while max(lacking) > 1e-9 * longest:
        times = [*times, [min(longest, lack) for lack in lacking]]
        lacking = [lack - taken for lack, taken in zip(lacking, times[-1], strict=True)]
    order = rearrangement._steinitz(times) if is_greedy_barred else balanced_order(times, longest)
    assert sorted(order) == list(range(len(times)))
    columns = [list(accumulate(times[row][j] for row in order)) for j in range(len(times[0]))]
    spread = max(max(sums) - min(sums) for sums in zip(*columns, strict=True))
    assert spread <= (len(times[0]) - 1) * longest * (1 + 1e-6) + 1e-9
