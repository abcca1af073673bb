"""The mixed-integer programme against exhaustive search, and the behaviour without Gurobi."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.exact import SolverUnavailableError, compact, gurobi, solve_exact
from cerebro.scheduling.exact.required_sub_epochs import required_sub_epochs
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.problems import multi_gpu, open_shop
from research.scenarios import thesis as thesis_problem
from tests.scheduling.brute import optimal_makespan
from tests.scheduling.instances import multi_gpu_problems, open_shops, problems

ENOUGH_S = 60.0


has_gurobi = find_spec("gurobipy") is not None
needs_gurobi = pytest.mark.skipif(
    not has_gurobi and not os.environ.get("CI"), reason="gurobipy is not installed: pip install gurobipy"
)


def check(problem: Problem) -> None:
    """Check that the schedule is valid, proven optimal and as short as exhaustive search finds."""
    result = compact.solve(problem, time_limit_s=ENOUGH_S)
    assert result.schedule is not None
    validate(problem, result.schedule).check()
    assert result.is_optimal
    assert result.schedule.makespan == pytest.approx(optimal_makespan(problem), rel=1e-6)


@needs_gurobi
@settings(deadline=None, max_examples=30)
@given(open_shops(max_models=3, max_workers=3))
def test_open_shops_equal_brute_force(problem: Problem) -> None:
    check(problem)


@pytest.mark.slow
@needs_gurobi
@settings(deadline=None, max_examples=40)
@given(problems(max_models=3, max_workers=2, max_partitions=2, max_gpus=2, max_parallel_plans=2))
def test_the_compact_form_solves_any_problem(problem: Problem) -> None:
    """Replicas, epochs, ready times, several GPUs and several parallel plans."""
    check(problem)


@st.composite
def thesis_problems(draw: st.DrawFn) -> Problem:
    """Generate small problems of the thesis: up to two nodes with several parallel plans."""
    nodes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
    seconds = st.integers(1, 9).map(float)
    return multi_gpu(
        nodes,
        {
            f"m{number}": {
                node: draw(st.dictionaries(st.integers(1, gpus), seconds, min_size=1))
                for node, gpus in enumerate(nodes)
            }
            for number in range(draw(st.integers(1, 3)))
        },
    )


@needs_gurobi
@settings(deadline=None, max_examples=30)
@given(thesis_problems())
def test_the_thesis_problems_equal_brute_force(problem: Problem) -> None:
    """A model visits each node once, on one or more GPUs."""
    check(problem)


@needs_gurobi
@pytest.mark.parametrize(("figure", "size"), [("4.1", (649, 1094)), ("4.2", (217, 354)), ("4.3", (481, 928))])
def test_the_compact_form_fits_the_licence_on_the_thesis_instances(
    figure: str, size: tuple[int, int]
) -> None:
    """The licence allows 2,000 variables and 2,000 constraints."""
    problem = thesis_problem(figure)
    with gurobi.session() as model:
        compact.formulate(model, problem, required_sub_epochs(problem))
        model.update()
        assert (model.NumVars, model.NumConstrs) == size


@needs_gurobi
def test_a_model_too_large_for_the_licence_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import gurobipy

    def refuse(model: gurobipy.Model) -> None:
        raise gurobipy.GurobiError(
            gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED, "Model too large for size-limited license"
        )

    monkeypatch.setattr(gurobipy.Model, "optimize", refuse)
    with pytest.raises(SolverUnavailableError, match=r"licence.*cp-sat"):
        compact.solve(thesis_problem("4.2"), time_limit_s=0.1)


def test_without_gurobipy_a_request_by_name_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing package and the solver that works without it."""
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(SolverUnavailableError, match=r"Gurobi is not installed.*cp-sat"):
        solve_exact(open_shop([[1.0, 2.0], [2.0, 1.5]]), time_limit_s=1.0, solver="gurobi")


@settings(deadline=None, max_examples=10)
@given(multi_gpu_problems())
def test_auto_solves_with_what_is_installed(problem: Problem) -> None:
    """The answer names its solver."""
    result = solve_exact(problem, time_limit_s=ENOUGH_S)
    assert result.schedule is not None
    validate(problem, result.schedule).check()
    assert result.solver in {"cp-sat", "gurobi"}
