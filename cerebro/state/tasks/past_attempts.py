"""Attempts in a time range of a log, for compacted sub-epochs. Pure.

The state before the range is not needed: attempts are assembled from the task events alone. If an attempt began before
the range, the timings in its commit give the start; the devices are unknown (`TaskAttempt.is_guessed`).

An undone sub-epoch (lost checkpoint) shows when its partition is assigned or committed again in the same epoch. If that
happens after the range, the sub-epoch still appears committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.gangs import Member
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.reports.timeline import TaskAttempt
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Attempt

_ASSIGNED, _STARTED = "assigned", "started"


class AttemptEvent(NamedTuple):
    """One event of an attempt. Times are seconds of the store's clock.

    Smaller than the log's event, because the reader of a log caches pages of them.
    """

    time: float
    task: str
    attempt: int
    worker: str
    what: str
    """`assigned`, `started`, or an `Attempt.outcome`."""
    devices: tuple[int, ...] = (0,)
    parallel_plan: ParallelPlan | None = None
    other_members: tuple[Member, ...] = ()
    sub_epoch: CompletedSubEpoch | None = None
    """The sub-epoch of a committed sub-epoch, without facts from the assignment."""
    start_s: float = 0.0


def attempt_events(events: Iterable[Event]) -> Iterator[AttemptEvent]:
    """Yield the events of attempts in a part of a log, in order."""
    for event in events:
        match event:
            case TaskAssigned():
                named = event.time, event.task, event.attempt, event.worker
                yield AttemptEvent(*named, _ASSIGNED, event.devices, event.parallel_plan, event.other_members)
            case TaskStarted():
                yield AttemptEvent(event.time, event.task, event.attempt, event.worker, _STARTED)
            case TaskCommitted():
                yield _commit(event)
            case TaskFailed():
                is_preempted = event.failure.kind is FailureKind.PREEMPTED
                what = f"revoked: {event.failure.message}" if is_preempted else str(event.failure.kind)
                yield AttemptEvent(event.time, event.task, event.attempt, event.worker, what)
            case TaskRevoked():
                yield AttemptEvent(
                    event.time, event.task, event.attempt, event.worker, f"revoked: {event.reason}"
                )


def _commit(event: TaskCommitted) -> AttemptEvent:
    key, result = TaskKey.parse(event.task), event.result
    sub_epoch = None
    if key.kind == "train" and result.checkpoint is not None and key.epoch and key.partition is not None:
        attempt = Attempt(number=event.attempt, worker=event.worker, assigned=0.0, ended=event.time)
        sub_epoch = CompletedSubEpoch.of(
            epoch=key.epoch,
            partition=key.partition,
            attempt=attempt,
            result=result,
            checkpoint=result.checkpoint,
        )
    named = event.time, event.task, event.attempt, event.worker
    return AttemptEvent(*named, "committed", sub_epoch=sub_epoch, start_s=result.timings.start_s)


@dataclass(kw_only=True)
class PastAttempts:
    """Attempts of a run, assembled event by event.

    Args:
        run: its id.
        chosen: filter for tasks; all by default.
    """

    run: str
    chosen: Callable[[TaskKey], bool] = lambda key: True
    _found: dict[tuple[str, int], TaskAttempt] = field(default_factory=dict)
    _commits: dict[tuple[str, int, int], TaskAttempt] = field(default_factory=dict)
    """(model, epoch, partition) -> the valid commit."""

    def take(self, events: Iterable[AttemptEvent]) -> None:
        """Add the next events of the log."""
        prefix = f"{self.run}/"
        for event in events:
            if event.task.startswith(prefix) and self.chosen(key := TaskKey.parse(event.task)):
                self._take(event, key)

    def _take(self, event: AttemptEvent, key: TaskKey) -> None:
        found = self._found.get((event.task, event.attempt))
        if found is None:
            found = TaskAttempt(key, _opened(event), is_guessed=event.what != _ASSIGNED)
            self._found[event.task, event.attempt] = found
        attempt = found.attempt
        match event.what:
            case "assigned":
                if key.kind == "train":
                    self._undo(key)
            case "started":
                attempt.started, attempt.has_run = event.time, True
            case outcome:
                attempt.ended, attempt.outcome = event.time, outcome
                if outcome == "committed":
                    self._commit(found, event)

    def _commit(self, found: TaskAttempt, event: AttemptEvent) -> None:
        attempt, sub_epoch, key = found.attempt, event.sub_epoch, found.key
        if attempt.has_run:
            attempt.start_s = min(max(0.0, event.start_s), attempt.ended - attempt.started)
        elif sub_epoch is not None:
            # Without process start: nothing bounds the worker's value.
            took = sub_epoch.timings
            attempt.started = event.time - (took.load_s + took.compute_s + took.save_s)
            attempt.has_run = True
        if sub_epoch is None:
            return
        found.sub_epoch = sub_epoch._replace(
            started=attempt.started,
            timings=sub_epoch.timings._replace(start_s=attempt.start_s),
            devices=attempt.devices,
            parallel_plan=attempt.parallel_plan,
            other_members=attempt.other_members,
        )
        self._undo(key)
        for partition in key.partitions:
            self._commits[key.model or "", key.epoch or 0, partition] = found

    def _undo(self, key: TaskKey) -> None:
        """Undo earlier commits in the same place."""
        for partition in key.partitions:
            earlier = self._commits.pop((key.model or "", key.epoch or 0, partition), None)
            if earlier is not None:
                earlier.sub_epoch = None

    def lacks_beginnings(self, since: float) -> bool:
        """True if an attempt that may be in a range from `since` has an unknown assignment."""
        return any(
            found.is_guessed and (not found.attempt.outcome or found.attempt.ended >= since)
            for found in self._found.values()
        )

    def is_open(self, until: float) -> bool:
        """True if an attempt that began by `until` has no known end."""
        return any(not f.attempt.outcome and f.overlaps(-math.inf, until) for f in self._found.values())

    def window(self, since: float, until: float) -> list[TaskAttempt]:
        """Return the attempts between two times (the store's clock, seconds), in the order of appearance."""
        return [found for found in self._found.values() if found.overlaps(since, until)]

    def __len__(self) -> int:
        return len(self._found)

    def epochs(self) -> dict[str, int]:
        """Return model -> newest epoch with a valid commit."""
        found: dict[str, int] = {}
        for model, epoch, _ in self._commits:
            found[model] = max(epoch, found.get(model, 0))
        return found

    def pop_final(self, is_final: Callable[[TaskKey], bool]) -> list[TaskAttempt]:
        """Remove sub-epochs that no later event can affect; return the committed ones in the order of commits."""
        final = [name for name, found in self._found.items() if found.attempt.outcome and is_final(found.key)]
        removed = [self._found.pop(name) for name in final]
        for key in {found.key for found in removed}:
            for partition in key.partitions:
                self._commits.pop((key.model or "", key.epoch or 0, partition), None)
        return sorted((f for f in removed if f.sub_epoch is not None), key=lambda found: found.attempt.ended)


def _opened(event: AttemptEvent) -> Attempt:
    """An attempt seen for the first time."""
    return Attempt(
        number=event.attempt,
        worker=event.worker,
        assigned=event.time,
        devices=event.devices,
        parallel_plan=event.parallel_plan,
        other_members=event.other_members,
    )
