"""Technique, devices and order chosen together: the planner against an exact solver, and against current practice.

The instances of `research.assumed` have assumed times, so the figures compare schedulers and not training times. The
seconds of planner and solver are CPU seconds, so other work on the machine does not count.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.figure import Figure
from cerebro.scheduling.exact import search
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.baselines import BASELINES, by_policy
from research.replanning import worth
from research.scenarios import SCENARIOS

PLAN_S, PLANS, SOLVE_S, SEEDS, RUNS = 2.0, 3, 20.0, 20, 8
HOPPING = "saturn-img-4x8-hop"


def benchmark() -> list[Figure]:
    """Measure the ten instances against CP-SAT, one against current practice, and planning once."""
    problems = {name: s.problem(0) for name, s in SCENARIOS.items() if name.startswith("saturn-")}
    planned = {name: _planned(problem) for name, problem in problems.items()}
    longest = {name: max(found) for name, found in planned.items()}
    hopping = problems[HOPPING]
    return [
        _against_solver(problems, longest),
        _against_practice(hopping, longest[HOPPING]),
        _again(hopping),
    ]


def _planned(problem: Problem) -> list[float]:
    """Return the makespans of plans by several seeds, so that a bar does not hold by luck."""
    plans = [plan(problem, time_limit_s=PLAN_S, seed=seed, clock=time.process_time) for seed in range(PLANS)]
    return [validate(problem, found.schedule).check().makespan for found in plans]


def _against_solver(problems: dict[str, Problem], planned: dict[str, float]) -> Figure:
    ratios = {}
    for name, problem in problems.items():
        solved = search.solve(problem, time_limit_s=SOLVE_S, hint=by_policy(problem), clock=time.process_time)
        assert solved.schedule is not None, "the hint at least"
        ratios[name] = planned[name] / validate(problem, solved.schedule).check().makespan
    worst = max(ratios, key=ratios.__getitem__)
    return Figure(
        what=f"{len(ratios)} instances with a choice of ways, planned in {PLAN_S:g} s, worst of {PLANS} seeds: over "
        f"CP-SAT in {SOLVE_S:g} s, both of the processor",
        measured=f"{statistics.fmean(ratios.values()):.3f} on average, {ratios[worst]:.3f} at most ({worst})",
        ratio=ratios[worst],
        bar=1.03,
        sense="at most",
        notes=(", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()), "times are assumed"),
    )


def _again(problem: Problem) -> Figure:
    lines, means = [], {}
    for sigma in (0.1, 0.3):
        found = [worth(problem, sigma=sigma, times=4, seed=seed) for seed in range(RUNS)]
        means[sigma] = statistics.fmean(each.again / each.once for each in found)
        knowing = statistics.fmean(each.knowing / each.once for each in found)
        lines.append(f"sigma {sigma}: {means[sigma]:.3f}, knowing all from the start {knowing:.3f}")
    return Figure(
        what="12 models hop over 4 nodes of 8 GPUs, times of ways off by sigma 0.3: planned four times with what is "
        "known by then, over once",
        measured="; ".join(lines),
        ratio=means[0.3],
        bar=0.9,
        sense="at most",
        notes=("times and errors are assumed",),
    )


def _against_practice(problem: Problem, planned: float) -> Figure:
    means = {
        name: statistics.fmean(make(problem, seed).makespan for seed in range(SEEDS))
        for name, make in BASELINES.items()
    }
    hours = ", ".join(f"{name} {seconds / 3600:.2f} h" for name, seconds in means.items())
    return Figure(
        what="12 models hop over 4 nodes of 8 GPUs, planned: over all GPUs of a node for each sub-epoch, in random "
        "order",
        measured=f"{planned / 3600:.2f} h; {hours}",
        ratio=planned / means["current practice"],
        bar=0.80,
        sense="at most",
        notes=("times are assumed", f"what it is compared with is the mean of {SEEDS} random orders"),
    )
