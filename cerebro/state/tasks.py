"""One task's life: states, the table of transitions, attempts.

A task is retried under a growing attempt number. Whether a failed attempt gets another one is decided here
and only here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from cerebro.contract.events import (
    SubEpochSaved,
    TaskAsked,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks import MEASURING, RETRYABLE, Failure, FailureKind, Member, TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import memory
from cerebro.state.keys import TaskKey

TaskEvent = TaskAssigned | TaskStarted | TaskCommitted | TaskFailed | TaskRevoked | TaskAsked | SubEpochSaved


class TaskState(StrEnum):
    """Where a task stands."""

    PENDING = "pending"  # to be done; no attempt is open
    ASSIGNED = "assigned"  # in a worker's inbox
    RUNNING = "running"  # a worker holds its lease
    COMMITTED = "committed"  # done, once
    FAILED = "failed"  # given up


OPEN = frozenset({TaskState.ASSIGNED, TaskState.RUNNING})
ENDED = frozenset({TaskState.COMMITTED, TaskState.FAILED})

TRANSITIONS: dict[tuple[TaskState, str], frozenset[TaskState]] = {
    (TaskState.PENDING, "TaskAssigned"): frozenset({TaskState.ASSIGNED}),
    (TaskState.ASSIGNED, "TaskStarted"): frozenset({TaskState.RUNNING}),
    (TaskState.ASSIGNED, "TaskRevoked"): frozenset({TaskState.PENDING}),
    (TaskState.ASSIGNED, "TaskFailed"): frozenset({TaskState.PENDING, TaskState.FAILED}),
    (TaskState.RUNNING, "TaskRevoked"): frozenset({TaskState.PENDING, TaskState.FAILED}),
    (TaskState.RUNNING, "TaskFailed"): frozenset({TaskState.PENDING, TaskState.FAILED}),
    (TaskState.RUNNING, "TaskCommitted"): frozenset({TaskState.COMMITTED}),
    (TaskState.RUNNING, "TaskAsked"): frozenset({TaskState.RUNNING}),
    (TaskState.RUNNING, "SubEpochSaved"): frozenset({TaskState.RUNNING}),
    # `Task.reopen`: the checkpoint a committed sub-epoch left is lost; a training partition may have to be made once
    # more.
    (TaskState.COMMITTED, "CheckpointLost"): frozenset({TaskState.PENDING}),
    (TaskState.COMMITTED, "PartitionWanted"): frozenset({TaskState.PENDING}),
    # No worker has the memory that it needs.
    (TaskState.PENDING, "TaskGivenUp"): frozenset({TaskState.FAILED}),
    # `Task.retry`: a user wants its model to go on.
    (TaskState.FAILED, "ModelRetried"): frozenset({TaskState.PENDING}),
}
"""(state, event) -> states it may lead to. Anything else is illegal and changes nothing."""

MAX_LOSSES = 5
"""Times a task may be running when its worker is lost. A worker that dies again and again on the same task (a kernel
that kills the whole worker for memory, say) would otherwise do so for ever."""

MAX_DEVICE_FAILURES = 5
"""Times a task may fail of its machine. By then it has met several, or the only one that there is."""

UNCOUNTED = frozenset({FailureKind.PREEMPTED, FailureKind.STORAGE_FULL, FailureKind.CHECKPOINT})
"""Failures that are not the task's own and use up no attempt."""


@lru_cache(maxsize=256)
def _shared(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Equal ones as one object: there is an attempt for each sub-epoch of a long run."""
    return devices


@lru_cache(maxsize=256)
def _shared_way(text: str) -> ParallelPlan:
    return ParallelPlan.model_validate_json(text)


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt of a task at a worker; times are the store's clock in seconds, 0 while unknown."""

    number: int
    worker: str
    assigned: float
    started: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    """`committed`, `revoked: REASON` (or given back by a worker that ends), or the failure's kind; empty while open."""
    has_run: bool = False
    """Whether it ever started. (At 0, perhaps, where virtual time begins.)"""
    asked: float | None = None
    """When the controller asked for it to be given back, if it did."""
    start_s: float = 0.0
    """Seconds of it before its own work began, at most all of it; known once it is committed."""
    devices: tuple[int, ...] = (0,)
    """Of the worker, that it takes or took."""
    parallel_plan: ParallelPlan | None = None
    """How it uses them; `None`: on one, as user code is written."""
    others: tuple[Member, ...] = ()
    """Of a sub-epoch on a set of partitions: the other workers of its gang. They have and lose the attempt together."""

    @property
    def has_failed(self) -> bool:
        """Whether it ended by a failure of its own."""
        return bool(self.outcome) and self.outcome != "committed" and not self.outcome.startswith("revoked: ")

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(worker, devices of it) that it takes or took."""
        first = ((self.worker, self.devices),)
        return (*first, *((each.worker, each.devices) for each in self.others)) if self.others else first


@dataclass(kw_only=True, slots=True)
class Task:
    """One task and its attempts, oldest first."""

    key: TaskKey
    state: TaskState = TaskState.PENDING
    attempts: list[Attempt] = field(default_factory=list)
    failures: int = 0
    """Attempts that failed and count."""
    hangs: int = 0
    """Of these, how many hung while their process was idle."""
    losses: int = 0
    """Attempts that were running when their worker was lost."""
    result: TaskResult | None = None
    """Of ETL, tests and predictions. What a sub-epoch or a validation brought is with its model."""
    device_failures: int = 0
    """Attempts that failed of their machine."""
    volume_failures: int = 0
    """Attempts that failed because a volume could not be used."""
    shunned: frozenset[str] = frozenset()
    """Workers where that was so, or may have been: it goes elsewhere first."""
    doubts: tuple[str, ...] = ()
    """Workers where user code raised what a broken device raises, too, in this order."""
    failure: Failure | None = None
    """Of the newest failed attempt."""
    exhausted: frozenset[str] = frozenset()
    """Workers where an attempt ran out of memory."""
    shortages: int = 0
    """Attempts that did."""
    lacks: tuple[memory.Lack, ...] = ()
    """What was learned of its need by those of them that had their worker to themselves; by the present way."""
    is_interrupted: bool = False
    """It ran when its worker was lost or taken away, or has a savepoint, and has not started again."""
    waits_until: float = 0.0
    """Of a sub-epoch with a savepoint: for so long it is worth waiting for a holder of its partition."""

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def worker(self) -> str | None:
        """Worker of the open attempt."""
        return self.attempts[-1].worker if self.state in OPEN else None

    def check(self, event: TaskEvent) -> None:
        """Raise `IllegalEventError` unless the event fits; changes nothing."""
        kind = event.type
        if (self.state, kind) not in TRANSITIONS:
            raise IllegalEventError(
                f"{kind} of {event.task} (attempt {event.attempt}) while it is {self.state}"
            )
        is_new = kind == "TaskAssigned"
        newest = self.attempts[-1] if self.attempts else None
        expected = (newest.number if newest else 0) + is_new
        if event.attempt != expected:
            raise IllegalEventError(
                f"{kind} of {event.task} names attempt {event.attempt}, expected {expected}"
            )
        if newest and not is_new and event.worker != newest.worker:
            raise IllegalEventError(f"{kind} of {event.task} by {event.worker}, but {newest.worker} has it")

    # --- by events that `check` passed -----------------------------------------------------------

    def assign(self, event: TaskAssigned, worker: str) -> None:
        """Open an attempt at `worker`."""
        self.attempts.append(
            Attempt(
                number=event.attempt,
                worker=worker,
                assigned=event.time,
                devices=_shared(event.devices),
                parallel_plan=_shared_way(event.parallel_plan.model_dump_json())
                if event.parallel_plan
                else None,
                others=event.others,
            )
        )
        self.state = TaskState.ASSIGNED

    def start(self, event: TaskStarted) -> None:
        """The open attempt runs."""
        newest = self.attempts[-1]
        newest.started, newest.has_run = event.time, True
        self.state, self.is_interrupted, self.waits_until = TaskState.RUNNING, False, 0.0

    def commit(self, event: TaskCommitted) -> None:
        """The open attempt has done it."""
        newest = self.attempts[-1]
        newest.ended, newest.outcome = event.time, "committed"
        newest.start_s = min(max(0.0, event.result.timings.start_s), newest.ended - newest.started)
        self.state = TaskState.COMMITTED

    def fail(
        self,
        event: TaskFailed,
        max_attempts: int,
        *,
        is_worth_another: bool = False,
        goes_another_way: bool = False,
    ) -> None:
        """The open attempt came to nothing.

        Args:
            is_worth_another: of whatever kind the failure is.
            goes_another_way: it was for the way, and another one is left: the attempt does not count.
        """
        newest = self.attempts[-1]
        newest.ended, newest.outcome = event.time, event.failure.kind
        is_running = self.state is TaskState.RUNNING
        if event.failure.kind is FailureKind.PREEMPTED:
            # Its worker gave it back, because it ends itself or was asked: the attempt is no failed one.
            newest.outcome = f"revoked: {event.failure.message}"
            self.state, self.is_interrupted = TaskState.PENDING, is_running
            return
        self.is_interrupted &= not is_running
        if goes_another_way:
            self.state, self.failure, self.lacks = TaskState.PENDING, event.failure, ()
            return
        if event.failure.kind is FailureKind.MEMBER_LOST and self.key.others:
            self.state = TaskState.PENDING
            self._lose(event.failure.message)
            return
        self._fail(event.failure, max_attempts, is_worth_another=is_worth_another)

    def revoke(self, event: TaskRevoked, max_attempts: int, *, goes_another_way: bool = False) -> None:
        """The open attempt was taken back; `goes_another_way` as of `fail`."""
        newest = self.attempts[-1]
        newest.ended, newest.outcome = event.time, f"revoked: {event.reason}"
        is_running, self.state = self.state is TaskState.RUNNING, TaskState.PENDING
        if not is_running or event.loss is None:
            return
        if event.loss is FailureKind.OUT_OF_MEMORY:
            self.failure = Failure(
                kind=event.loss, message=event.reason, place="host", limit_bytes=event.limit_bytes
            )
            if goes_another_way:
                self.lacks = ()
            else:
                self._fail(self.failure, max_attempts)
            return
        self.is_interrupted = True
        if event.loss is FailureKind.PREEMPTED or goes_another_way:
            return
        self._lose(event.reason)

    def _lose(self, reason: str) -> None:
        """A worker was lost while the attempt ran."""
        self.is_interrupted, self.losses = True, self.losses + 1
        if self.losses > MAX_LOSSES:
            self.state, self.is_interrupted = TaskState.FAILED, False
            message = f"its worker was lost {self.losses} times while running it, at last because {reason}"
            self.failure = Failure(kind=FailureKind.CRASH, message=message)

    def _fail_of_device(self, failure: Failure) -> None:
        """It is the machine's fault: that counts for the machine. A task must not go round for ever, though."""
        worker, self.device_failures = self.attempts[-1].worker, self.device_failures + 1
        self.shunned |= {worker}
        self.state = TaskState.PENDING
        if self.device_failures >= MAX_DEVICE_FAILURES:
            self.state = TaskState.FAILED
            where = ", ".join(sorted(self.shunned))
            message = (
                f"its machine failed {self.device_failures} times (on {where}), so perhaps no single worker is the "
                f"cause. At last on {worker}: {failure.message}"
            )
            self.failure = failure.model_copy(update={"message": message})

    def _fail(self, failure: Failure, max_attempts: int, *, is_worth_another: bool = False) -> None:
        self._count(failure, max_attempts, is_worth_another=is_worth_another)
        if failure.is_final and failure.kind not in UNCOUNTED:
            self.state = TaskState.FAILED  # of whatever kind, and wherever there is more memory

    def _count(self, failure: Failure, max_attempts: int, *, is_worth_another: bool) -> None:
        """What was learned by an attempt that failed, and whether another one is worth it but for failure rules that
        want none."""
        self.failure = failure
        if failure.kind is FailureKind.DEVICE:
            self._fail_of_device(failure)
            return
        if failure.is_of_volume and failure.kind not in UNCOUNTED:
            self.volume_failures += 1
            self.shunned |= {self.attempts[-1].worker}
            self.state = TaskState.PENDING
            return
        if self.key.kind in MEASURING and failure.kind not in UNCOUNTED:
            # That it came to nothing is what there was to find out.
            self.failures, self.state = self.failures + 1, TaskState.FAILED
            return
        if self.key.kind == "audit" and failure.kind is FailureKind.OUT_OF_MEMORY:
            # Nothing waits for it: no second worker is to die of it.
            self.failures, self.state = self.failures + 1, TaskState.FAILED
            return
        if failure.kind is FailureKind.OUT_OF_MEMORY and self.key.kind != "search":
            # Since the first one it is given workers for itself.
            before, is_alone = self.lacks, bool(self.exhausted)
            self.exhausted |= {self.attempts[-1].worker}
            self.shortages += 1
            if is_alone:
                self.lacks = memory.with_failure(before, failure)
            if memory.have_grown(before, self.lacks):
                self.state = TaskState.PENDING  # it goes to a worker with more than that, or is given up
                return
        if failure.kind in UNCOUNTED:
            self.state = TaskState.PENDING
            return
        if failure.may_be_device:
            self.doubts += (self.attempts[-1].worker,)
            self.shunned |= {self.attempts[-1].worker}
        is_for_elsewhere = failure.rule is not None and failure.rule.action == "retry_elsewhere"
        if is_for_elsewhere:
            self.shunned |= {self.attempts[-1].worker}
        self.failures += 1
        self.hangs += failure.is_idle
        is_first_hang = failure.is_idle and self.hangs == 1
        is_retryable = failure.kind in RETRYABLE or is_worth_another or is_first_hang or is_for_elsewhere
        another = is_retryable and self.failures < max_attempts
        self.state = TaskState.PENDING if another else TaskState.FAILED

    def give_up(self, failure: Failure) -> None:
        """No further attempt is made, although there could be."""
        self.state, self.failure, self.is_interrupted = TaskState.FAILED, failure, False

    def keep_savepoint(self) -> None:
        """Its attempt has ended, and the next one goes on from a savepoint."""
        trained_s = sum(attempt.ended - attempt.started for attempt in self.attempts if attempt.has_run)
        self.is_interrupted, self.waits_until = True, self.attempts[-1].ended + trained_s

    def retry(self) -> None:
        """Have it done once more if it was given up, its attempts counted anew. Where it ran out of memory is still
        known: it is done elsewhere, or alone. What it needs is learned anew."""
        if self.state is TaskState.FAILED:
            self.state, self.failure, self.lacks = TaskState.PENDING, None, ()
            self.failures = self.hangs = self.losses = self.device_failures = 0

    def reopen(self) -> None:
        """Undo the commit: what it made cannot be read, or is wanted once more."""
        self.state, self.result = TaskState.PENDING, None
