"""Comparison of schedulers on a scenario, for ``python -m research simulate`` and the documentation.

The validator checks every schedule. A ratio is the makespan divided by the best proven lower bound, never by another
scheduler's makespan. This module does not format results.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from cerebro.errors import InstanceError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.conditions import Conditions, Reality
from cerebro.scheduling.dispatch import CALM, dispatch
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from cerebro.scheduling.validator import validate
from research.scenarios import Scenario
from research.solve import DEFAULT_TIME_LIMIT_S, METHODS, PLANNER, solve

RANDOM = "random"
"""The policy of the papers."""

_ROUNDING = 1e-9
"""Relative tolerance for sums of floats in different orders."""

Engine = Callable[[Problem, str, int, Conditions], Schedule]
"""(problem, dispatch policy or planner, seed, conditions) -> schedule."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One schedule by one scheduler.

    Attributes:
        problem: the scenario's problem, or a rival's view of the same problem.
        schedule: a valid schedule.
        lower_bound: seconds that the scheduler proved for the scenario's problem; 0 without a proof.
        is_optimal: True if the schedule is proven optimal.
        seconds: time to compute the schedule.
    """

    problem: Problem
    schedule: Schedule
    lower_bound: float = 0.0
    is_optimal: bool = False
    seconds: float = 0.0


class Spread(NamedTuple):
    """Statistics of one number over the seeds."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the statistics of at least one value."""
        return cls(fmean(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scheduler on one scenario, over the seeds.

    Attributes:
        scheduler: name of the scheduler.
        makespan, seconds: of the schedules, and of their computation.
        lower_bound: best known bound in seconds, mean over the seeds.
        ratio: makespan divided by lower bound.
        is_optimal: True if proven for all seeds.
        first: schedule of the first seed, for a chart.
    """

    scheduler: str
    makespan: Spread
    lower_bound: float
    ratio: Spread
    seconds: Spread
    is_optimal: bool
    first: Trial


def schedulers(scenario: Scenario) -> tuple[str, ...]:
    """Return the default schedulers of a scenario: its rivals, then Cerebro's."""
    if scenario.rivals:
        exact = ("cp-sat",) if importlib.util.find_spec("ortools") else ()
        return (*scenario.rivals, DEFAULT_POLICY, PLANNER, *exact)
    names = (RANDOM, "fifo", "cyclic", DEFAULT_POLICY)
    return names if scenario.conditions else (*names, PLANNER)


def compare(
    scenario: Scenario,
    names: Sequence[str],
    *,
    seeds: int = 1,
    sigma: float | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    engine: Engine | None = None,
) -> tuple[Row, ...]:
    """Compare schedulers on a scenario.

    Args:
        scenario: see `scenarios.SCENARIOS`.
        names: names from `solve.METHODS` or of the scenario's rivals.
        seeds: number of seeds, from 0, for the problem, the noise and the schedulers.
        sigma: noise of the sub-epoch times, instead of the scenario's.
        time_limit_s: limit for each schedule of a planner or solver.
        engine: runs dispatch policies and the planner, instead of `dispatch`.

    Raises:
        InstanceError: a scheduler is unknown or does not apply here.
        ScheduleError: a schedule is invalid, which is a bug in Cerebro.
    """
    for name in names:
        if name not in METHODS and name not in scenario.rivals:
            known = ", ".join((*scenario.rivals, *METHODS))
            raise InstanceError(f"{scenario.name} has no scheduler {name!r}: choose one of {known}")
    cases = [_case(scenario, seed, sigma, time_limit_s, engine) for seed in range(seeds)]
    columns = [[case.trial(name) for name in names] for case in cases]
    bounds = [
        max(case.bound(), *(trial.lower_bound for trial in column))
        for case, column in zip(cases, columns, strict=True)
    ]
    return tuple(
        _row(name, [column[place] for column in columns], bounds) for place, name in enumerate(names)
    )


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A scenario at one seed."""

    problem: Problem
    rivals: Mapping[str, Problem]
    conditions: Conditions
    seed: int
    time_limit_s: float
    engine: Engine

    def bound(self) -> float:
        """Seconds that no schedule can beat, for the scenario's problem and conditions."""
        if self.conditions == CALM:
            return lower_bound(self.problem)
        return Reality(self.problem, self.conditions, self.seed).bound()

    def trial(self, name: str) -> Trial:
        """Schedule with one scheduler, timed and validated."""
        started = time.perf_counter()
        trial = replace(self._trial(name), seconds=time.perf_counter() - started)
        validate(trial.problem, trial.schedule, actual=self.conditions != CALM).check()
        return trial

    def _trial(self, name: str) -> Trial:
        problem, policy = self.rivals.get(name, self.problem), RANDOM if name in self.rivals else name
        is_run = policy in POLICIES or (policy == PLANNER and self.engine is not _dispatched)
        if name in self.rivals or (problem.is_single and is_run):
            return Trial(problem=problem, schedule=self.engine(problem, policy, self.seed, self.conditions))
        found = solve(problem, policy=name, time_limit_s=self.time_limit_s, seed=self.seed)
        if self.conditions == CALM:
            bound, is_optimal = found.lower_bound, found.is_optimal
            return Trial(problem=problem, schedule=found.schedule, lower_bound=bound, is_optimal=is_optimal)
        following = Following.of(found.schedule)
        schedule = dispatch(problem, following, seed=self.seed, conditions=self.conditions)
        return Trial(problem=problem, schedule=schedule)


def _case(
    scenario: Scenario, seed: int, sigma: float | None, time_limit_s: float, engine: Engine | None
) -> _Case:
    problem = scenario.problem(seed)
    conditions = scenario.conditions(problem) if scenario.conditions else CALM
    if sigma is not None:
        conditions = replace(conditions, sigma=sigma)
    if not problem.is_single and (engine or conditions != CALM):
        raise InstanceError(
            f"{scenario.name} lets models choose among parallel plans: it can be planned, but not run with noise or by "
            "the controller's core, which trains each sub-epoch on one GPU"
        )
    return _Case(
        problem=problem,
        rivals={name: make(seed) for name, make in scenario.rivals.items()},
        conditions=conditions,
        seed=seed,
        time_limit_s=time_limit_s,
        engine=engine or _dispatched,
    )


def _dispatched(problem: Problem, policy: str, seed: int, conditions: Conditions) -> Schedule:
    return dispatch(problem, POLICIES[policy], seed=seed, conditions=conditions)


def _row(name: str, trials: Sequence[Trial], bounds: Sequence[float]) -> Row:
    makespans = [trial.schedule.makespan for trial in trials]
    ratios = [makespan / bound for makespan, bound in zip(makespans, bounds, strict=True)]
    return Row(
        scheduler=name,
        makespan=Spread.of(makespans),
        lower_bound=fmean(bounds),
        ratio=Spread.of(ratios),
        seconds=Spread.of([trial.seconds for trial in trials]),
        is_optimal=all(
            trial.is_optimal or ratio <= 1 + _ROUNDING for trial, ratio in zip(trials, ratios, strict=True)
        ),
        first=replace(trials[0], lower_bound=bounds[0]),
    )
