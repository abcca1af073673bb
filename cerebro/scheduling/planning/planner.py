"""The planner: `plan` searches for the best schedule of a problem within a time limit.

`controller.planning.answering` calls it in the controller's planner process, in parallel to training. It runs on one
core, in pure Python: heuristics, then local searches with restarts, until the makespan meets the lower bound
(which proves it optimal) or time is up. A plan stays good while sub-epochs take about their estimated time. It must
not use dispatch states, workers' health or noise; the caller compares the plan with dispatch
(`cerebro.scheduling.planning.advice`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.planning.decoder import Decoder, to_schedule
from cerebro.scheduling.planning.local_search import Candidate, search_priorities, search_rotations
from cerebro.scheduling.planning.order_search import search_orders
from cerebro.scheduling.planning.plan_table import at_least, has_choice, plan_tables
from cerebro.scheduling.planning.rotation import is_open_shop
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem, undominated
from cerebro.scheduling.schedule import Schedule

_TOLERANCE = 1e-9
"""Relative tolerance for float sums in different orders."""
_MAX_SUB_EPOCHS = 10_000
"""Maximum size for running the policy LRPTw itself.

Decoding its rule is ten times faster and differs only in ties.
"""
_FEW_SUB_EPOCHS = 24
"""Up to this size, orders are searched even without a choice of parallel plans.

Rotations and dispatch miss some of them: of 6,000 random 3 x 3 instances, 12 had a shorter schedule.
"""
_FIRST_ROTATIONS = 768
"""Number of rotations to try first.

If longest model and fullest worker both meet the bound, some rotation soon does.
"""
_ROTATIONS, _DISPATCHES, _ORDERS = 128, 16, 64
"""Steps of each search before the next one continues.

A rotation or an order takes about an eighth of the time of a dispatch, but a step over orders decodes
several.
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Result of planning.

    Attributes:
        schedule: the best valid schedule found.
        lower_bound: minimum seconds of any schedule.
        source: origin of the schedule, in words.
        seconds: planning time.
    """

    schedule: Schedule
    lower_bound: float
    source: str
    seconds: float

    @property
    def gap(self) -> float:
        """Relative excess of the makespan over the lower bound; 0 proves that it is optimal."""
        if not self.lower_bound:
            return 0.0
        gap = self.schedule.makespan / self.lower_bound - 1
        return gap if gap > _TOLERANCE else 0.0


def plan(
    problem: Problem,
    *,
    time_limit_s: float = 2.0,
    seed: int = 0,
    target: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Search for the best schedule of the problem within the time limit.

    Unless `target` is met earlier, the makespan is at most the makespan of LRPTw with the best initial
    plan table. Above 10,000 sub-epochs ties may differ. The result depends on the seed and on the number of
    steps the time allows.

    Args:
        problem: any problem; the planner also chooses among several parallel plans.
        time_limit_s: no step starts after this many seconds, except the first. A step takes milliseconds for
            hundreds of sub-epochs, some seconds for a hundred thousand.
        seed: seed of the random search.
        target: makespan in seconds at which to stop.
        clock: monotonic seconds.
    """
    began = clock()
    bound = lower_bound(problem)
    problem = undominated(problem)
    enough = max(bound, target or 0.0) * (1 + _TOLERANCE)
    best: Candidate | None = None
    for found in _steps(problem, random.Random(seed), enough):
        if found is not None and (best is None or found.makespan < best.makespan):
            best = found
        if (best is not None and best.makespan <= enough) or clock() - began >= time_limit_s:
            break
    assert best is not None, "the first step finds a schedule"
    schedule = to_schedule(problem, best.plan_table, best.starts)
    return Plan(schedule=schedule, lower_bound=bound, source=best.source, seconds=clock() - began)


def _steps(problem: Problem, rng: random.Random, enough: float) -> Iterator[Candidate | None]:
    """Yield the result of each step; the first is a schedule."""
    found = plan_tables(problem)
    tables = {f", {name}" if len(found) > 1 else "": table for name, table in found.items()}
    decoders = {name: Decoder(problem, table) for name, table in tables.items()}
    first = [_heuristic(decoder, name, enough) for name, decoder in decoders.items()]
    elite = [min(first, key=lambda c: c.makespan)]
    # A table with a smaller bound has more to gain from a better order.
    first.sort(key=lambda c: at_least(problem, c.plan_table))
    yield elite[0]
    searches = [
        (search_rotations(decoder, rng), _ROTATIONS) for decoder in decoders.values() if is_open_shop(decoder)
    ]
    for search, _ in searches:
        yield from itertools.islice(search, _FIRST_ROTATIONS)
    searches.append((search_priorities(problem, tables, rng), _DISPATCHES))
    if has_choice(problem) or problem.num_sub_epochs <= _FEW_SUB_EPOCHS:
        searches.append((_refined(problem, first, elite, rng), _ORDERS))
    yield from _in_turns(searches, elite)


def _heuristic(decoder: Decoder, name: str, enough: float) -> Candidate:
    """Decode LRPTw and, if that does not suffice, run it as a policy."""
    problem, plan_table = decoder.problem, decoder.plan_table
    decoded = decoder.dispatch([[0.0] * (problem.num_models + 1)] * (problem.num_workers + 1))
    assert decoded is not None, "no cutoff"
    found = Candidate(*decoded, plan_table, f"LRPTw{name}")
    if found.makespan <= enough or problem.num_sub_epochs > _MAX_SUB_EPOCHS:
        return found
    schedule = dispatch(problem.with_parallel_plans(plan_table), POLICIES["lrptw"])
    starts = [
        (sub_epoch.start, sub_epoch.model, sub_epoch.partition, sub_epoch.worker)
        for sub_epoch in schedule.sub_epochs
    ]
    return min(found, found._replace(makespan=schedule.makespan, starts=starts), key=lambda c: c.makespan)


def _in_turns(
    searches: Sequence[tuple[Iterator[Candidate | None], int]], elite: list[Candidate]
) -> Iterator[Candidate | None]:
    """Alternate between the searches, with about equal time for each.

    An early leader gets no extra time: early results do not predict the best search.

    Args:
        searches: searches, each with its number of steps per turn.
        elite: holds the best candidate.
    """
    while True:
        for search, burst in searches:
            for found in itertools.islice(search, burst):
                if found is not None and found.makespan < elite[0].makespan:
                    elite[0] = found
                yield found


def _refined(
    problem: Problem, first: Sequence[Candidate], elite: list[Candidate], rng: random.Random
) -> Iterator[Candidate | None]:
    """Search over orders, repeatedly.

    Starts from each first candidate that may still improve, then from the best one.
    """
    while True:
        promising = [c for c in first if at_least(problem, c.plan_table) < elite[0].makespan]
        for start in (*promising, elite[0]):
            yield None
            yield from search_orders(problem, start, rng)
