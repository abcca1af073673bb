"""Whether a schedule keeps the invariants, whoever made it: the judge of every policy, plan and simulation.

Looks at nothing but the problem and the units, and shares no code with what makes schedules: a mistake made there
must not be made here again. What it checks is the list of seed paper, section 5.1, and of the thesis, section 4.3:
each model on each partition exactly once per epoch, in one place at a time, its epochs one after the other; no GPU
twice at once, all GPUs of a unit from its start to its end (a unit is one interval: no preemption); units only where
their partition and a strategy of their model are. A unit on a set of partitions is on a worker for each of them, from
the same start to the same end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from cerebro.errors import ScheduleError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.problem import GangStrategy, Problem, filled_s
from cerebro.scheduling.schedule import Schedule, Unit

_TOLERANCE = 1e-9
"""Of the makespan (or of 1 s if that is longer): starts and ends are sums of floats, added in different orders."""
_SHARE = 1e-3
"""Of the shortest unit: the tolerance is never more."""
_NAMED = 3
"""Violations an error tells in words; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the validator found.

    Attributes:
        violations: a sentence each; empty if the schedule is right.
        makespan: seconds until the last unit ends.
        lower_bound: seconds that no schedule can beat: of the problem, or for actual times the clairvoyant bound.
    """

    violations: tuple[str, ...]
    makespan: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Makespan over lower bound, less 1; 0 is a proof that the schedule is optimal. 0 if there is nothing to do."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound > 0 else 0.0

    def check(self) -> Report:
        """The report itself.

        Raises:
            ScheduleError: there are violations.
        """
        if not self.violations:
            return self
        more = len(self.violations) - _NAMED
        told = "; ".join(self.violations[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise ScheduleError(f"the schedule breaks its rules: {told}")


def validate(problem: Problem, schedule: Schedule, *, actual: bool = False) -> Report:
    """Check a schedule against the invariants and compare it with the lower bound.

    Args:
        problem: what was to be scheduled.
        schedule: units in any order.
        actual: the units took what they took, not what was estimated: durations need only be above 0, and the bound is
            the clairvoyant one, from the durations of the schedule itself (row sums and column sums as placed; seed
            paper, section 5.1). Otherwise each takes what one of the strategies of its model says.

    Returns:
        All violations, not only the first. Times may be off by 1e-9 of the makespan.
    """
    known, violations = [], []
    for unit in schedule.units:
        if complaint := _outside(problem, unit):
            violations.append(complaint)
        else:
            known.append(unit)
    slack = _TOLERANCE * max(1.0, max((unit.end for unit in known), default=0.0))
    # Whatever the makespan, a unit that is missing or overlaps by its whole length is seen.
    slack = min(slack, _SHARE * min((unit.end - unit.start for unit in known), default=slack))
    for unit in known:
        violations += _place(problem, unit, slack, actual)
        violations += _readiness(problem, unit, slack)
    violations += _visits(problem, known)
    violations += _isolation(problem, known, slack)
    violations += _capacity(problem, known, slack)
    return Report(
        violations=tuple(violations),
        makespan=max((unit.end for unit in known), default=0.0),
        lower_bound=_clairvoyant(problem, known) if actual else lower_bound(problem),
    )


def _outside(problem: Problem, unit: Unit) -> str:
    """What makes a unit impossible to place at all, or nothing."""
    for what, index, count in (
        ("model", unit.model, problem.num_models),
        *(("partition", partition, problem.num_partitions) for partition, _ in unit.places),
        *(("worker", worker, problem.num_workers) for _, worker in unit.places),
    ):
        if not 0 <= index < count:
            return f"a unit names {what} {index}, but there are {count}"
    if (
        not (math.isfinite(unit.start) and math.isfinite(unit.end))
        or unit.start < 0
        or unit.end <= unit.start
    ):
        return f"{_name(problem, unit)} runs from {unit.start} to {unit.end}, which is no interval"
    if unit.gpus < 1:
        return f"{_name(problem, unit)} takes {unit.gpus} GPUs, expected at least 1"
    return ""


def _place(problem: Problem, unit: Unit, slack: float, actual: bool) -> Iterator[str]:
    """The partitions are there, each at another worker, and a way of the model with these GPUs, this technique and this
    duration."""
    name, where = _name(problem, unit), " and ".join(problem.workers[worker] for _, worker in unit.places)
    for partition, worker in unit.places:
        if worker not in problem.holders[partition]:
            yield f"{name} runs on {problem.workers[worker]}, which does not hold partition {partition}"
    if len({worker for _, worker in unit.places}) < len(unit.places):
        yield f"{name} runs on {where}, expected another worker for each partition"
    known = problem.gangs[unit.model] if unit.others else problem.strategies[unit.model][unit.worker]
    ways = [
        way
        for way in known
        if way.gpus == unit.gpus
        and way.technique == unit.technique
        and (not isinstance(way, GangStrategy) or way.members == len(unit.places))
    ]
    if not ways:
        technique = f" by {unit.technique}" if unit.technique else ""
        yield f"{name} runs on {unit.gpus} GPUs of {where}{technique}, for which the model has no strategy"
        return
    took, size = unit.end - unit.start, sum(problem.sizes[partition] for partition, _ in unit.places)
    planned = [way.seconds * size + way.fixed for way in ways]
    if not actual and all(abs(took - seconds) > slack for seconds in planned):
        yield f"{name} takes {took:g} s on {where}, its strategy says {planned[0]:g} s"


def _readiness(problem: Problem, unit: Unit, slack: float) -> Iterator[str]:
    for what, ready in (
        ("the model", problem.model_ready[unit.model]),
        *((problem.workers[worker], problem.ready(worker)) for _, worker in unit.places),
    ):
        if unit.start < ready - slack:
            yield f"{_name(problem, unit)} starts at {unit.start:g} s, but {what} is ready at {ready:g} s only"


def _visits(problem: Problem, units: Iterable[Unit]) -> Iterator[str]:
    """Each model on each partition exactly once per epoch, alone or in a set; in the first epoch where something is
    left."""
    counts = Counter((unit.model, unit.epoch, partition) for unit in units for partition, _ in unit.places)
    for model in range(problem.num_models):
        for epoch in range(1, problem.epochs + 1):
            for partition in range(problem.num_partitions):
                is_due = epoch > 1 or problem.left[model] >> partition & 1
                expected, found = int(is_due), counts.pop((model, epoch, partition), 0)
                if found != expected:
                    name = _name_of(problem, model, partition, epoch)
                    yield f"{name} runs {_times(found)}, expected {_times(expected)}"
    for (model, epoch, partition), found in counts.items():
        name = _name_of(problem, model, partition, epoch)
        yield f"{name} runs {_times(found)}, but epochs are 1 to {problem.epochs}"


def _isolation(problem: Problem, units: Iterable[Unit], slack: float) -> Iterator[str]:
    """A model is in one place at a time, and its epochs follow each other."""
    chains: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        chains[unit.model].append(unit)
    for chain in chains.values():
        chain.sort(key=lambda unit: (unit.start, unit.end))
        longest = chain[0]
        for before, unit in pairwise(chain):
            longest = max(longest, before, key=lambda other: other.end)
            if unit.start < longest.end - slack:
                yield f"{_name(problem, unit)} starts at {unit.start:g} s, while {_name(problem, longest)} runs"
            if unit.epoch < before.epoch:
                yield f"{_name(problem, unit)} comes after {_name(problem, before)}, a later epoch"


def _capacity(problem: Problem, units: Iterable[Unit], slack: float) -> Iterator[str]:
    """At no instant are more GPUs of a worker taken than it has; one that is not ready is taken. Each unit that starts
    too much is named."""
    changes: dict[int, list[tuple[float, int, Unit]]] = defaultdict(list)
    for unit, worker in [(each, worker) for each in units for _, worker in each.places]:
        if worker not in changes:
            # That nothing starts before the first one is ready is said of each unit (`_readiness`).
            first, *later = problem.gpu_ready[worker]
            for ready in later:
                if ready > first:
                    changes[worker] += [(-math.inf, 1, unit), (ready - slack, -1, unit)]
        # Ended a little early, so that the next may start at what is the same instant but for rounding.
        changes[worker] += [(unit.start, unit.gpus, unit), (unit.end - slack, -unit.gpus, unit)]
    for worker, found in changes.items():
        taken = 0
        for at, change, unit in sorted(found, key=lambda entry: entry[:2]):
            taken += change
            if change > 0 and at >= 0 and taken > problem.gpus[worker]:
                yield (
                    f"{_name(problem, unit)} starts at {at:g} s on {problem.workers[worker]}: {taken} of its "
                    f"{problem.gpus[worker]} GPUs would be taken"
                )


def _clairvoyant(problem: Problem, units: Iterable[Unit]) -> float:
    rows: dict[int, float] = defaultdict(float)
    columns: dict[int, float] = defaultdict(float)
    for unit in units:
        rows[unit.model] += unit.end - unit.start
        for _, worker in unit.places:
            columns[worker] += (unit.end - unit.start) * unit.gpus
    return max(
        [problem.model_ready[model] + seconds for model, seconds in rows.items()]
        + [filled_s(problem.gpu_ready[worker], seconds) for worker, seconds in columns.items()],
        default=0.0,
    )


def _name(problem: Problem, unit: Unit) -> str:
    numbers = " and ".join(str(partition) for partition, _ in unit.places)
    return f"model {problem.models[unit.model]!r} on partition {numbers} in epoch {unit.epoch}"


def _name_of(problem: Problem, model: int, partition: int, epoch: int) -> str:
    return f"model {problem.models[model]!r} on partition {partition} in epoch {epoch}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
