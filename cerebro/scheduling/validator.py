"""Whether a schedule keeps the invariants, whoever made it: the judge of every policy, plan and simulation.

Looks at nothing but the problem and the sub-epochs, and shares no code with what makes schedules: a mistake made there
must not be made here again. What it checks is the list of seed paper, section 5.1, and of the thesis, section 4.3:
each model on each partition exactly once per epoch, in one place at a time, its epochs one after the other; no GPU
twice at once, all GPUs of a sub-epoch from its start to its end (a sub-epoch is one interval: no preemption);
sub-epochs only where their partition and a strategy of their model are. A sub-epoch on a set of partitions is on a
worker for each of them, from the same start to the same end.
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
from cerebro.scheduling.schedule import Schedule, SubEpoch

_TOLERANCE = 1e-9
"""Of the makespan (or of 1 s if that is longer): starts and ends are sums of floats, added in different orders."""
_SHARE = 1e-3
"""Of the shortest sub-epoch: the tolerance is never more."""
_NAMED = 3
"""Violations an error tells in words; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the validator found.

    Attributes:
        violations: a sentence each; empty if the schedule is right.
        makespan: seconds until the last sub-epoch ends.
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
        schedule: sub-epochs in any order.
        actual: the sub-epochs took what they took, not what was estimated: durations need only be above 0, and the
            bound is the clairvoyant one, from the durations of the schedule itself (row sums and column sums as placed;
            seed paper, section 5.1). Otherwise each takes what one of the strategies of its model says.

    Returns:
        All violations, not only the first. Times may be off by 1e-9 of the makespan.
    """
    known, violations = [], []
    for sub_epoch in schedule.sub_epochs:
        if complaint := _outside(problem, sub_epoch):
            violations.append(complaint)
        else:
            known.append(sub_epoch)
    slack = _TOLERANCE * max(1.0, max((sub_epoch.end for sub_epoch in known), default=0.0))
    # Whatever the makespan, a sub-epoch that is missing or overlaps by its whole length is seen.
    slack = min(slack, _SHARE * min((sub_epoch.end - sub_epoch.start for sub_epoch in known), default=slack))
    for sub_epoch in known:
        violations += _place(problem, sub_epoch, slack, actual)
        violations += _readiness(problem, sub_epoch, slack)
    violations += _visits(problem, known)
    violations += _isolation(problem, known, slack)
    violations += _capacity(problem, known, slack)
    return Report(
        violations=tuple(violations),
        makespan=max((sub_epoch.end for sub_epoch in known), default=0.0),
        lower_bound=_clairvoyant(problem, known) if actual else lower_bound(problem),
    )


def _outside(problem: Problem, sub_epoch: SubEpoch) -> str:
    """What makes a sub-epoch impossible to place at all, or nothing."""
    for what, index, count in (
        ("model", sub_epoch.model, problem.num_models),
        *(("partition", partition, problem.num_partitions) for partition, _ in sub_epoch.places),
        *(("worker", worker, problem.num_workers) for _, worker in sub_epoch.places),
    ):
        if not 0 <= index < count:
            return f"a sub-epoch names {what} {index}, but there are {count}"
    if (
        not (math.isfinite(sub_epoch.start) and math.isfinite(sub_epoch.end))
        or sub_epoch.start < 0
        or sub_epoch.end <= sub_epoch.start
    ):
        return f"{_name(problem, sub_epoch)} runs from {sub_epoch.start} to {sub_epoch.end}, which is no interval"
    if sub_epoch.gpus < 1:
        return f"{_name(problem, sub_epoch)} takes {sub_epoch.gpus} GPUs, expected at least 1"
    return ""


def _place(problem: Problem, sub_epoch: SubEpoch, slack: float, actual: bool) -> Iterator[str]:
    """The partitions are there, each at another worker, and a way of the model with these GPUs, this technique and this
    duration."""
    name, where = (
        _name(problem, sub_epoch),
        " and ".join(problem.workers[worker] for _, worker in sub_epoch.places),
    )
    for partition, worker in sub_epoch.places:
        if worker not in problem.holders[partition]:
            yield f"{name} runs on {problem.workers[worker]}, which does not hold partition {partition}"
    if len({worker for _, worker in sub_epoch.places}) < len(sub_epoch.places):
        yield f"{name} runs on {where}, expected another worker for each partition"
    known = (
        problem.gangs[sub_epoch.model]
        if sub_epoch.others
        else problem.strategies[sub_epoch.model][sub_epoch.worker]
    )
    parallel_plans = [
        parallel_plan
        for parallel_plan in known
        if parallel_plan.gpus == sub_epoch.gpus
        and parallel_plan.technique == sub_epoch.technique
        and (not isinstance(parallel_plan, GangStrategy) or parallel_plan.members == len(sub_epoch.places))
    ]
    if not parallel_plans:
        technique = f" by {sub_epoch.technique}" if sub_epoch.technique else ""
        yield f"{name} runs on {sub_epoch.gpus} GPUs of {where}{technique}, for which the model has no strategy"
        return
    took, size = (
        sub_epoch.end - sub_epoch.start,
        sum(problem.sizes[partition] for partition, _ in sub_epoch.places),
    )
    planned = [parallel_plan.seconds * size + parallel_plan.fixed for parallel_plan in parallel_plans]
    if not actual and all(abs(took - seconds) > slack for seconds in planned):
        yield f"{name} takes {took:g} s on {where}, its strategy says {planned[0]:g} s"


def _readiness(problem: Problem, sub_epoch: SubEpoch, slack: float) -> Iterator[str]:
    for what, ready in (
        ("the model", problem.model_ready[sub_epoch.model]),
        *((problem.workers[worker], problem.ready(worker)) for _, worker in sub_epoch.places),
    ):
        if sub_epoch.start < ready - slack:
            yield f"{_name(problem, sub_epoch)} starts at {sub_epoch.start:g} s, but {what} is ready at {ready:g} s"


def _visits(problem: Problem, sub_epochs: Iterable[SubEpoch]) -> Iterator[str]:
    """Each model on each partition exactly once per epoch, alone or in a set; in the first epoch where something is
    left."""
    counts = Counter(
        (sub_epoch.model, sub_epoch.epoch, partition)
        for sub_epoch in sub_epochs
        for partition, _ in sub_epoch.places
    )
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


def _isolation(problem: Problem, sub_epochs: Iterable[SubEpoch], slack: float) -> Iterator[str]:
    """A model is in one place at a time, and its epochs follow each other."""
    chains: dict[int, list[SubEpoch]] = defaultdict(list)
    for sub_epoch in sub_epochs:
        chains[sub_epoch.model].append(sub_epoch)
    for chain in chains.values():
        chain.sort(key=lambda sub_epoch: (sub_epoch.start, sub_epoch.end))
        longest = chain[0]
        for before, sub_epoch in pairwise(chain):
            longest = max(longest, before, key=lambda other: other.end)
            if sub_epoch.start < longest.end - slack:
                others = _name(problem, longest)
                yield f"{_name(problem, sub_epoch)} starts at {sub_epoch.start:g} s, while {others} runs"
            if sub_epoch.epoch < before.epoch:
                yield f"{_name(problem, sub_epoch)} comes after {_name(problem, before)}, a later epoch"


def _capacity(problem: Problem, sub_epochs: Iterable[SubEpoch], slack: float) -> Iterator[str]:
    """At no instant are more GPUs of a worker taken than it has; one that is not ready is taken. Each sub-epoch that
    starts too much is named."""
    changes: dict[int, list[tuple[float, int, SubEpoch]]] = defaultdict(list)
    for sub_epoch, worker in [(each, worker) for each in sub_epochs for _, worker in each.places]:
        if worker not in changes:
            # That nothing starts before the first one is ready is said of each sub-epoch (`_readiness`).
            first, *later = problem.gpu_ready[worker]
            for ready in later:
                if ready > first:
                    changes[worker] += [(-math.inf, 1, sub_epoch), (ready - slack, -1, sub_epoch)]
        # Ended a little early, so that the next may start at what is the same instant but for rounding.
        changes[worker] += [
            (sub_epoch.start, sub_epoch.gpus, sub_epoch),
            (sub_epoch.end - slack, -sub_epoch.gpus, sub_epoch),
        ]
    for worker, found in changes.items():
        taken = 0
        for at, change, sub_epoch in sorted(found, key=lambda entry: entry[:2]):
            taken += change
            if change > 0 and at >= 0 and taken > problem.gpus[worker]:
                yield (
                    f"{_name(problem, sub_epoch)} starts at {at:g} s on {problem.workers[worker]}: {taken} of its "
                    f"{problem.gpus[worker]} GPUs would be taken"
                )


def _clairvoyant(problem: Problem, sub_epochs: Iterable[SubEpoch]) -> float:
    rows: dict[int, float] = defaultdict(float)
    columns: dict[int, float] = defaultdict(float)
    for sub_epoch in sub_epochs:
        rows[sub_epoch.model] += sub_epoch.end - sub_epoch.start
        for _, worker in sub_epoch.places:
            columns[worker] += (sub_epoch.end - sub_epoch.start) * sub_epoch.gpus
    return max(
        [problem.model_ready[model] + seconds for model, seconds in rows.items()]
        + [filled_s(problem.gpu_ready[worker], seconds) for worker, seconds in columns.items()],
        default=0.0,
    )


def _name(problem: Problem, sub_epoch: SubEpoch) -> str:
    numbers = " and ".join(str(partition) for partition, _ in sub_epoch.places)
    return f"model {problem.models[sub_epoch.model]!r} on partition {numbers} in epoch {sub_epoch.epoch}"


def _name_of(problem: Problem, model: int, partition: int, epoch: int) -> str:
    return f"model {problem.models[model]!r} on partition {partition} in epoch {epoch}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
