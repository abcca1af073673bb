"""The planner: distance of plans from the lower bound, and their CPU time on one core.

The problems are in `research.scenarios`, each with several seeds. Seconds are CPU seconds of the process, so other work
on the machine does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from benchmarks.figure import Figure
from cerebro.scheduling.conditions import Conditions, Reality
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planning.advice import mean_makespans
from cerebro.scheduling.planning.planner import Plan, plan
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.validator import validate
from research.scenarios import balanced, narrow, paper

_INSTANCES = 100
_FEW = 5
_RUNS = 20


def benchmark() -> list[Figure]:
    """Measure each bar."""
    return [_large(), *(_certificates(workers) for workers in (8, 16)), _near_equal(), _noisy(), *_balanced()]


def _large() -> Figure:
    problems = _papers(256, 16, _FEW)
    found = [
        _timed(problem, lambda p: plan(p, time_limit_s=0.4, clock=time.process_time)) for problem in problems
    ]
    return Figure(
        what="homogeneous and heterogeneous 256 x 16: planned in under 0.5 s",
        measured=f"{_largest(s for _, s in found):.2f} s at most, gap {_largest(p.gap for p, _ in found):.4%} at most",
        ratio=_largest(1 + p.gap for p, _ in found) if _largest(s for _, s in found) < 0.5 else float("inf"),
        bar=1.001,
        sense="at most",
    )


def _certificates(workers: int) -> Figure:
    problems = _papers(16, workers, _INSTANCES)
    found = [
        _timed(problem, lambda p: plan(p, time_limit_s=0.1, clock=time.process_time)) for problem in problems
    ]
    met = sum(p.gap == 0 and s < 0.1 for p, s in found)
    longer = [
        plan(problem, time_limit_s=2.0, clock=time.process_time).gap == 0
        for problem in _unmet(problems, found)
    ]
    return Figure(
        what=f"the paper's 16 x {workers}: the bound met in under 0.1 s",
        measured=f"{met} of {len(found)} instances, {statistics.fmean(s for _, s in found) * 1e3:.0f} ms on average",
        ratio=met / len(found),
        bar=1.0,
        sense="at least",
        notes=(f"16 x {workers}: of the other {len(longer)}, {sum(longer)} met it within 2 s",)
        if longer
        else (),
    )


def _unmet(problems: list[Problem], found: list[tuple[Plan, float]]) -> list[Problem]:
    return [problem for problem, (p, s) in zip(problems, found, strict=True) if p.gap or s >= 0.1]


def _near_equal() -> Figure:
    gaps = {
        size: [plan(narrow(size, size, seed), clock=time.process_time).gap for seed in range(_FEW)]
        for size in (8, 16)
    }
    return Figure(
        what="n = p = 8 and 16, models +-15 %, workers +-5 %: planned",
        measured=", ".join(f"{size}: gap {max(found):.2%} at most" for size, found in gaps.items()),
        ratio=1 + max(max(found) for found in gaps.values()),
        bar=1.01,
        sense="at most",
    )


def _noisy() -> Figure:
    conditions = Conditions(sigma=0.1)
    ratios = []
    for size in (8, 16):
        for seed in range(_FEW):
            problem = narrow(size, size, seed)
            found = plan(problem, clock=time.process_time)
            policies = {"planned": Following.of(found.schedule), "lrptw": POLICIES["lrptw"]}
            means, _ = mean_makespans(problem, policies, sigma=conditions.sigma, seed=1000)
            policy = policies["planned" if means["planned"] < means["lrptw"] else "lrptw"]
            for run in range(_RUNS):
                schedule = dispatch(problem, policy, seed=run, conditions=conditions)
                ratios.append(schedule.makespan / Reality(problem, conditions, run).bound())
    return Figure(
        what="the same with noise of sigma 0.1: planned or dispatched, whichever is advised",
        measured=f"{statistics.fmean(ratios):.3f} of the clairvoyant bound on average, {max(ratios):.3f} at most",
        ratio=statistics.fmean(ratios),
        bar=1.05,
        sense="at most",
    )


def _balanced() -> list[Figure]:
    problems = [balanced(20, 16, seed) for seed in range(2 * _FEW)]
    figures = []
    for limit, bar, some in ((2.0, 1.03, problems), (30.0, 1.022, [problems[0], problems[-1]])):
        gaps = [plan(problem, time_limit_s=limit, clock=time.process_time).gap for problem in some]
        figures.append(
            Figure(
                what=f"balanced 20 x 16: planned in {limit:g} s",
                measured=f"gap {statistics.fmean(gaps):.2%} on average, {max(gaps):.2%} at most",
                ratio=1 + max(gaps),
                bar=bar,
                sense="at most",
            )
        )
    return figures


def _papers(models: int, workers: int, seeds: int) -> list[Problem]:
    """Return the homogeneous problem of figure 6, and heterogeneous ones."""
    return [
        paper(models, workers, heterogeneous=False),
        *(paper(models, workers, seed) for seed in range(seeds)),
    ]


def _timed(problem: Problem, planner: Callable[[Problem], Plan]) -> tuple[Plan, float]:
    """Return the validated plan and its CPU seconds."""
    began = time.process_time()
    found = planner(problem)
    seconds = time.process_time() - began
    validate(problem, found.schedule).check()
    return found, seconds


def _largest(values: Iterable[float]) -> float:
    return max(values)
