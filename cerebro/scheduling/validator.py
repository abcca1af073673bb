"""Checks schedules against the invariants, for tests, benchmarks and notebooks. The controller does not call it.

It reads only the problem and the sub-epochs, and shares no code with the producers of schedules, so that it
does not repeat their mistakes. The invariants (seed paper, section 5.1; thesis, section 4.3): each model on
each partition exactly once per epoch, in one place at a time, epochs in sequence; no GPU used twice at once,
all GPUs of a sub-epoch from its start to its end (no preemption); sub-epochs only on workers with the
partition and a parallel plan of the model. A gang uses one worker for each partition, from the same start to the
same end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from cerebro.errors import ScheduleError
from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.problem import Problem, filled_s
from cerebro.scheduling.schedule import Placement, Schedule

_TOLERANCE = 1e-9
"""Tolerance relative to the makespan (at least 1 s).

Starts and ends are float sums in different orders.
"""
_SHARE = 1e-3
"""Upper limit of the tolerance, relative to the shortest sub-epoch."""
_NAMED = 3
"""Violations in an error message; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a validation.

    Attributes:
        violations: one sentence each; () for a valid schedule.
        makespan: seconds until the last sub-epoch ends.
        lower_bound: minimum seconds of any schedule; for actual times the clairvoyant bound.
    """

    violations: tuple[str, ...]
    makespan: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Relative excess of the makespan over the lower bound.

        0 proves optimality, or nothing to schedule.
        """
        return self.makespan / self.lower_bound - 1 if self.lower_bound > 0 else 0.0

    def check(self) -> Report:
        """Return this report if the schedule is valid.

        Raises:
            ScheduleError: there are violations.
        """
        if not self.violations:
            return self
        more = len(self.violations) - _NAMED
        summary = "; ".join(self.violations[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise ScheduleError(f"the schedule breaks its rules: {summary}")


def validate(problem: Problem, schedule: Schedule, *, actual: bool = False) -> Report:
    """Check a schedule against the invariants and compare it with the lower bound.

    Args:
        problem: the problem.
        schedule: sub-epochs in any order.
        actual: True for measured durations: they need only be above 0, and the bound is the clairvoyant one,
            from the schedule's own durations (row sums and column sums as placed; seed paper, section 5.1).
            Otherwise each duration must match a parallel plan of the model.

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
    # Detect a missing or fully overlapping sub-epoch for any makespan.
    slack = min(slack, _SHARE * min((sub_epoch.end - sub_epoch.start for sub_epoch in known), default=slack))
    for sub_epoch in known:
        violations += _place(problem, sub_epoch, slack, actual)
        violations += _readiness(problem, sub_epoch, slack)
    violations += _sub_epochs(problem, known)
    violations += _isolation(problem, known, slack)
    violations += _capacity(problem, known, slack)
    return Report(
        violations=tuple(violations),
        makespan=max((sub_epoch.end for sub_epoch in known), default=0.0),
        lower_bound=_clairvoyant(problem, known) if actual else lower_bound(problem),
    )


def _outside(problem: Problem, sub_epoch: Placement) -> str:
    """Return why a sub-epoch cannot be placed at all, or ""."""
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


def _place(problem: Problem, sub_epoch: Placement, slack: float, actual: bool) -> Iterator[str]:
    """Check that workers hold the partitions, and that a parallel plan matches GPUs, technique and duration."""
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
        if sub_epoch.other_members
        else problem.parallel_plans[sub_epoch.model][sub_epoch.worker]
    )
    parallel_plans = [
        parallel_plan
        for parallel_plan in known
        if parallel_plan.gpus == sub_epoch.gpus
        and parallel_plan.technique == sub_epoch.technique
        and parallel_plan.workers == len(sub_epoch.places)
    ]
    if not parallel_plans:
        technique = f" by {sub_epoch.technique}" if sub_epoch.technique else ""
        yield f"{name} runs on {sub_epoch.gpus} GPUs of {where}{technique}, for which the model has no parallel plan"
        return
    took, size = (
        sub_epoch.end - sub_epoch.start,
        sum(problem.sizes[partition] for partition, _ in sub_epoch.places),
    )
    planned = [parallel_plan.seconds * size + parallel_plan.fixed for parallel_plan in parallel_plans]
    if not actual and all(abs(took - seconds) > slack for seconds in planned):
        yield f"{name} takes {took:g} s on {where}, its parallel plan says {planned[0]:g} s"


def _readiness(problem: Problem, sub_epoch: Placement, slack: float) -> Iterator[str]:
    for what, ready in (
        ("the model", problem.model_ready[sub_epoch.model]),
        *((problem.workers[worker], problem.ready(worker)) for _, worker in sub_epoch.places),
    ):
        if sub_epoch.start < ready - slack:
            yield f"{_name(problem, sub_epoch)} starts at {sub_epoch.start:g} s, but {what} is ready at {ready:g} s"


def _sub_epochs(problem: Problem, sub_epochs: Iterable[Placement]) -> Iterator[str]:
    """Check that each model trains on each partition once per epoch.

    In the first epoch only where needed.
    """
    counts = Counter(
        (sub_epoch.model, sub_epoch.epoch, partition)
        for sub_epoch in sub_epochs
        for partition, _ in sub_epoch.places
    )
    for model in range(problem.num_models):
        for epoch in range(1, problem.epochs + 1):
            for partition in range(problem.num_partitions):
                is_due = epoch > 1 or problem.remaining_partitions[model] >> partition & 1
                expected, found = int(is_due), counts.pop((model, epoch, partition), 0)
                if found != expected:
                    name = _name_of(problem, model, partition, epoch)
                    yield f"{name} runs {_times(found)}, expected {_times(expected)}"
    for (model, epoch, partition), found in counts.items():
        name = _name_of(problem, model, partition, epoch)
        yield f"{name} runs {_times(found)}, but epochs are 1 to {problem.epochs}"


def _isolation(problem: Problem, sub_epochs: Iterable[Placement], slack: float) -> Iterator[str]:
    """Check that a model is in one place at a time, with epochs in sequence."""
    chains: dict[int, list[Placement]] = defaultdict(list)
    for sub_epoch in sub_epochs:
        chains[sub_epoch.model].append(sub_epoch)
    for chain in chains.values():
        chain.sort(key=lambda sub_epoch: (sub_epoch.start, sub_epoch.end))
        longest = chain[0]
        for previous, sub_epoch in pairwise(chain):
            longest = max(longest, previous, key=lambda other: other.end)
            if sub_epoch.start < longest.end - slack:
                running_name = _name(problem, longest)
                yield f"{_name(problem, sub_epoch)} starts at {sub_epoch.start:g} s, while {running_name} runs"
            if sub_epoch.epoch < previous.epoch:
                yield f"{_name(problem, sub_epoch)} comes after {_name(problem, previous)}, a later epoch"


def _capacity(problem: Problem, sub_epochs: Iterable[Placement], slack: float) -> Iterator[str]:
    """Check that workers have enough GPUs at all times. A GPU that is not ready counts as used.

    Reports each sub-epoch that starts without enough GPUs.
    """
    changes: dict[int, list[tuple[float, int, Placement]]] = defaultdict(list)
    for sub_epoch, worker in [(each, worker) for each in sub_epochs for _, worker in each.places]:
        if worker not in changes:
            # `_readiness` checks that nothing starts before the first GPU is ready.
            first, *later = problem.gpu_ready[worker]
            for ready in later:
                if ready > first:
                    changes[worker] += [(-math.inf, 1, sub_epoch), (ready - slack, -1, sub_epoch)]
        # End a little early, so that a successor may start at the same instant despite rounding.
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


def _clairvoyant(problem: Problem, sub_epochs: Iterable[Placement]) -> float:
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


def _name(problem: Problem, sub_epoch: Placement) -> str:
    numbers = " and ".join(str(partition) for partition, _ in sub_epoch.places)
    return f"model {problem.models[sub_epoch.model]!r} on partition {numbers} in epoch {sub_epoch.epoch}"


def _name_of(problem: Problem, model: int, partition: int, epoch: int) -> str:
    return f"model {problem.models[model]!r} on partition {partition} in epoch {epoch}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")
