"""The plan of an epoch: the best schedule that can be found in a given time, one core, pure Python.

Heuristics first, then restarts, then local search, until the makespan meets the lower bound (then it is optimal, and
there is nothing left to look for) or time is up. Meant to run beside training: it never blocks on anything, and the
schedule it returns stays good as long as sub-epochs take about what they were estimated to. It must not know of
dispatch states, workers' health or noise; whether a plan is worth following is for `cerebro.scheduling.advice`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cerebro.scheduling.allotment import allotments, at_least, has_choice
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.decoder import Decoder, to_schedule
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.local_search import Candidate, search_priorities, search_rotations
from cerebro.scheduling.order_search import search_orders
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem, undominated
from cerebro.scheduling.rotation import is_open_shop
from cerebro.scheduling.schedule import Schedule

_TOLERANCE = 1e-9
"""Relative: sums of floats in another order."""
_MOST_SUB_EPOCHS = 10_000
"""Above, the policy LRPTw itself is not run: the same rule is decoded ten times faster, and differs in ties at most."""
_FEW_SUB_EPOCHS = 24
"""Up to so many, orders are searched where nothing is to be chosen, too. Rotations and dispatch reach few of them: of
6,000 random instances of three by three, 12 had a shorter schedule."""
_FIRST_ROTATIONS = 768
"""Where the longest model and the fullest worker both meet the bound, some rotation soon does."""
_ROTATIONS, _DISPATCHES, _ORDERS = 128, 16, 64
"""Steps of a search before the next has its turn. A rotation takes about an eighth of the time of a dispatch. An order
does too, but its search decodes several in a step."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was found.

    Attributes:
        schedule: valid; the best that was seen.
        lower_bound: seconds that no schedule can beat.
        source: how it was found, in words.
        seconds: it took to find.
    """

    schedule: Schedule
    lower_bound: float
    source: str
    seconds: float

    @property
    def gap(self) -> float:
        """By how much the makespan may exceed the best possible, relative: 0 is proof that it does not."""
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
    """The best schedule of the problem that is found in time.

    Its makespan is at most that of the policy LRPTw (with the best of the allotments, where there are strategies to
    choose), unless `target` is met before; problems beyond some ten thousand sub-epochs excepted, where ties may
    differ. The result depends on the seed and on how many steps the time allows.

    Args:
        problem: any; with several strategies they are chosen too.
        time_limit_s: no step is begun after so many seconds, except the first. A step takes milliseconds for hundreds
            of sub-epochs, and some seconds for a hundred thousand.
        seed: of the random search.
        target: a makespan in seconds that is good enough to stop at.
        clock: seconds that never go back.
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
    schedule = to_schedule(problem, best.allotment, best.starts)
    return Plan(schedule=schedule, lower_bound=bound, source=best.source, seconds=clock() - began)


def _steps(problem: Problem, rng: random.Random, enough: float) -> Iterator[Candidate | None]:
    """What each step finds; the first finds a schedule."""
    found = allotments(problem)
    tables = {f", {name}" if len(found) > 1 else "": table for name, table in found.items()}
    decoders = {name: Decoder(problem, table) for name, table in tables.items()}
    first = [_heuristic(decoder, name, enough) for name, decoder in decoders.items()]
    elite = [min(first, key=lambda c: c.makespan)]
    # The less a table needs at the least, the more there is to gain by a better order.
    first.sort(key=lambda c: at_least(problem, c.allotment))
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
    """LRPTw: as decoded here and, unless that will do, as the policy decides."""
    problem, allotment = decoder.problem, decoder.allotment
    decoded = decoder.dispatch([[0.0] * (problem.num_models + 1)] * (problem.num_workers + 1))
    assert decoded is not None, "no cutoff"
    found = Candidate(*decoded, allotment, f"LRPTw{name}")
    if found.makespan <= enough or problem.num_sub_epochs > _MOST_SUB_EPOCHS:
        return found
    schedule = dispatch(problem.with_strategies(allotment), POLICIES["lrptw"])
    starts = [
        (sub_epoch.start, sub_epoch.model, sub_epoch.partition, sub_epoch.worker)
        for sub_epoch in schedule.sub_epochs
    ]
    return min(found, found._replace(makespan=schedule.makespan, starts=starts), key=lambda c: c.makespan)


def _in_turns(
    searches: Sequence[tuple[Iterator[Candidate | None], int]], elite: list[Candidate]
) -> Iterator[Candidate | None]:
    """Steps of all searches, about as much time for each.

    Not more for the one that leads: which of them is the better in the end is not seen in the beginning.

    Args:
        searches: each with the number of its steps before the next has its turn.
        elite: holds the best candidate that was found.
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
    """Searches over orders, one after the other: from each of the first candidates whose table could still give a
    shorter schedule than the best one by then, and from the best one."""
    while True:
        promising = [c for c in first if at_least(problem, c.allotment) < elite[0].makespan]
        for start in (*promising, elite[0]):
            yield None
            yield from search_orders(problem, start, rng)
