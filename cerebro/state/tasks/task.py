"""States, transitions and attempts of a task.

Each retry has a higher attempt number. `Task.fail` and `Task.revoke` decide on a retry from the failure and the task's
counters. `attempt_events` passes to them whether the savepoint, the machine or the parallel plan may be the cause.
`failure_events` fails replica copies and validations that reach `max_attempts`. The events `TaskGivenUp` and
`ModelRetried` fail or retry a task without an open attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from cerebro.contract.events import (
    PreemptionRequested,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import MEASURING
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.tasks.gangs import Member
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state.tasks import memory_need
from cerebro.state.tasks.keys import TaskKey

TaskEvent = (
    TaskAssigned
    | TaskStarted
    | TaskCommitted
    | TaskFailed
    | TaskRevoked
    | PreemptionRequested
    | SubEpochSaved
)


class TaskState(StrEnum):
    """State of a task."""

    PENDING = "pending"  # no attempt is open
    ASSIGNED = "assigned"  # in a worker's inbox
    RUNNING = "running"  # the worker holds its lease
    COMMITTED = "committed"  # done, once
    FAILED = "failed"  # no further attempts


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
    (TaskState.RUNNING, "PreemptionRequested"): frozenset({TaskState.RUNNING}),
    (TaskState.RUNNING, "SubEpochSaved"): frozenset({TaskState.RUNNING}),
    # `Task.reopen`: a sub-epoch's checkpoint is lost, or another replica copy of the partition may be needed later.
    # These names are labels for docs/state.md, not events. A search task without a usable answer is reopened, too.
    (TaskState.COMMITTED, "CheckpointLost"): frozenset({TaskState.PENDING}),
    (TaskState.COMMITTED, "PartitionWanted"): frozenset({TaskState.PENDING}),
    # `Task.give_up`: no worker has enough memory.
    (TaskState.PENDING, "TaskGivenUp"): frozenset({TaskState.FAILED}),
    # `Task.retry`: a user retries the model. A resumed run retries search tasks, and replica copies that failed because
    # of a volume.
    (TaskState.FAILED, "ModelRetried"): frozenset({TaskState.PENDING}),
}
"""(state, event) -> allowed states. In any other state the event changes nothing."""

MAX_LOSSES = 5
"""Worker losses that a task survives; the next one fails it. Without a limit, a task could kill workers for ever."""

MAX_DEVICE_FAILURES = 5
"""Number of machine failures that fails a task. Retries prefer workers where the task has not failed."""


@lru_cache(maxsize=256)
def _shared(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Intern equal tuples: a long run has an attempt for each sub-epoch."""
    return devices


@lru_cache(maxsize=256)
def _shared_plan(text: str) -> ParallelPlan:
    return ParallelPlan.model_validate_json(text)


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt at a task. Times are seconds of the store's clock, 0 if unknown."""

    number: int
    worker: str
    assigned: float
    started: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    """`committed`, `revoked: REASON` (also for released tasks) or the failure's kind; empty while open."""
    has_run: bool = False
    """True if it started. (`started` may be 0 in virtual time.)"""
    release_requested_at: float | None = None
    """Time of the controller's request to release it, if any."""
    start_s: float = 0.0
    """Seconds of process start, known after the commit."""
    devices: tuple[int, ...] = (0,)
    """Devices of the worker."""
    parallel_plan: ParallelPlan | None = None
    """How it uses the devices; `None`: one device, user code as written."""
    other_members: tuple[Member, ...] = ()
    """The other workers of a gang, which share the attempt."""
    group: FusedGroup | None = None
    """The fused group whose attempts share the devices."""

    @property
    def num_sharing(self) -> int:
        """Number of attempts that share the devices, this one included."""
        return self.group.size if self.group is not None else 1

    @property
    def has_failed(self) -> bool:
        """True if it ended with its own failure."""
        return bool(self.outcome) and self.outcome != "committed" and not self.outcome.startswith("revoked: ")

    @property
    def places(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(worker, its devices) of the attempt."""
        first = ((self.worker, self.devices),)
        return (
            (*first, *((each.worker, each.devices) for each in self.other_members))
            if self.other_members
            else first
        )


@dataclass(kw_only=True, slots=True)
class Task:
    """One task and its attempts, oldest first."""

    key: TaskKey
    state: TaskState = TaskState.PENDING
    attempts: list[Attempt] = field(default_factory=list)
    failures: int = 0
    """Failed attempts that count."""
    hangs: int = 0
    """Failed attempts that hung while their process was idle."""
    losses: int = 0
    """Attempts that ran when their worker was lost."""
    result: TaskResult | None = None
    """Result of ETL, tests and predictions; the model has the results of sub-epochs and validations."""
    device_failures: int = 0
    """Attempts that failed because of their machine."""
    volume_failures: int = 0
    """Attempts that failed because of a volume."""
    failed_at: frozenset[str] = frozenset()
    """Workers that failed it, maybe because of machine or volume; try others first."""
    doubts: tuple[str, ...] = ()
    """Workers where user code raised an error that a broken device may cause, in the order of attempts."""
    failure: Failure | None = None
    """Failure of the newest failed attempt."""
    exhausted: frozenset[str] = frozenset()
    """Workers where an attempt ran out of memory. After the first one, each attempt has its worker to itself."""
    shortages: int = 0
    """Number of out-of-memory failures recorded in `exhausted`."""
    lacks: tuple[memory_need.Lack, ...] = ()
    """Host and device memory that was too small, from attempts alone on their worker, by the current parallel plan."""
    is_interrupted: bool = False
    """True after an interrupted attempt or a savepoint, until the next start."""
    waits_until: float = 0.0
    """Time until which a sub-epoch with a savepoint waits for a worker with its partition."""

    @property
    def attempt(self) -> int:
        """Number of the newest attempt; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def worker(self) -> str | None:
        """Worker of the open attempt."""
        return self.attempts[-1].worker if self.state in OPEN else None

    def check(self, event: TaskEvent) -> None:
        """Raise `IllegalEventError` unless the event fits; change nothing."""
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

    # --- events that passed `check` --------------------------------------------------------------

    def assign(self, event: TaskAssigned, worker: str) -> None:
        """Open an attempt at `worker`."""
        self.attempts.append(
            Attempt(
                number=event.attempt,
                worker=worker,
                assigned=event.time,
                devices=_shared(event.devices),
                parallel_plan=_shared_plan(event.parallel_plan.model_dump_json())
                if event.parallel_plan
                else None,
                other_members=event.other_members,
                group=event.group,
            )
        )
        self.state = TaskState.ASSIGNED

    def start(self, event: TaskStarted) -> None:
        """Mark the open attempt as running."""
        newest = self.attempts[-1]
        newest.started, newest.has_run = event.time, True
        self.state, self.is_interrupted, self.waits_until = TaskState.RUNNING, False, 0.0

    def commit(self, event: TaskCommitted) -> None:
        """Mark the open attempt as committed."""
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
        """End the open attempt with a failure.

        Args:
            is_worth_another: retry also after a kind of failure that is otherwise not retried, while attempts remain.
            goes_another_way: retry with another parallel plan, without counting the attempt.
        """
        newest = self.attempts[-1]
        newest.ended, newest.outcome = event.time, event.failure.kind
        is_running = self.state is TaskState.RUNNING
        if event.failure.kind is FailureKind.PREEMPTED:
            # Released: the worker drains or was preempted. The attempt does not count as failed.
            newest.outcome = f"revoked: {event.failure.message}"
            self.state, self.is_interrupted = TaskState.PENDING, is_running
            return
        self.is_interrupted &= not is_running
        if goes_another_way:
            self.state, self.failure, self.lacks = TaskState.PENDING, event.failure, ()
            return
        if event.failure.kind is FailureKind.MEMBER_LOST and self.key.other_partitions:
            self.state = TaskState.PENDING
            self._lose(event.failure.message)
            return
        self._fail(event.failure, max_attempts, is_worth_another=is_worth_another)

    def revoke(self, event: TaskRevoked, max_attempts: int, *, goes_another_way: bool = False) -> None:
        """Revoke the open attempt; see `fail` for `goes_another_way`."""
        newest = self.attempts[-1]
        newest.ended, newest.outcome = event.time, f"revoked: {event.reason}"
        is_running, self.state = self.state is TaskState.RUNNING, TaskState.PENDING
        if not is_running or event.loss is None:
            return
        if event.loss is FailureKind.OUT_OF_MEMORY:
            self.failure = Failure(
                kind=event.loss, message=event.reason, memory_kind="host", limit_bytes=event.limit_bytes
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
        """Count the loss of a worker during the attempt."""
        self.is_interrupted, self.losses = True, self.losses + 1
        if self.losses > MAX_LOSSES:
            self.state, self.is_interrupted = TaskState.FAILED, False
            message = f"its worker was lost {self.losses} times while running it, at last because {reason}"
            self.failure = Failure(kind=FailureKind.CRASH, message=message)

    def _fail_of_device(self, failure: Failure) -> None:
        """Count a machine failure; fail the task at `MAX_DEVICE_FAILURES`."""
        worker, self.device_failures = self.attempts[-1].worker, self.device_failures + 1
        self.failed_at |= {worker}
        self.state = TaskState.PENDING
        if self.device_failures >= MAX_DEVICE_FAILURES:
            self.state = TaskState.FAILED
            where = ", ".join(sorted(self.failed_at))
            message = (
                f"its machine failed {self.device_failures} times (on {where}), so possibly no single worker is the "
                f"cause. At last on {worker}: {failure.message}"
            )
            self.failure = failure.model_copy(update={"message": message})

    def _fail(self, failure: Failure, max_attempts: int, *, is_worth_another: bool = False) -> None:
        self._count(failure, max_attempts, is_worth_another=is_worth_another)
        if failure.is_final and failure.kind.traits.retry != "free":
            self.state = TaskState.FAILED  # a rule forbids a retry, also on a worker with more memory

    def _count(self, failure: Failure, max_attempts: int, *, is_worth_another: bool) -> None:
        """Count a failed attempt and decide on a retry. Afterwards `_fail` applies a failure rule that forbids one."""
        self.failure, retry = failure, failure.kind.traits.retry
        if retry == "elsewhere":
            self._fail_of_device(failure)
            return
        if failure.is_of_volume and retry != "free":
            self.volume_failures += 1
            self.failed_at |= {self.attempts[-1].worker}
            self.state = TaskState.PENDING
            return
        if self.key.kind in MEASURING and retry != "free":
            # A failed measurement is a result.
            self.failures, self.state = self.failures + 1, TaskState.FAILED
            return
        if self.key.kind == "verify" and failure.kind is FailureKind.OUT_OF_MEMORY:
            # `verify` is the kind of verification tasks. No task waits for one, so don't risk a second worker.
            self.failures, self.state = self.failures + 1, TaskState.FAILED
            return
        if failure.kind is FailureKind.OUT_OF_MEMORY and self.key.kind != "search":
            # After the first shortage it runs alone on its workers.
            previous_lacks, is_alone = self.lacks, bool(self.exhausted)
            self.exhausted |= {self.attempts[-1].worker}
            self.shortages += 1
            if is_alone:
                self.lacks = memory_need.with_failure(previous_lacks, failure)
            if memory_need.have_grown(previous_lacks, self.lacks):
                self.state = TaskState.PENDING  # without a worker with more memory, the controller gives up
                return
        if retry == "free":
            self.state = TaskState.PENDING
            return
        if failure.may_be_device:
            self.doubts += (self.attempts[-1].worker,)
            self.failed_at |= {self.attempts[-1].worker}
        is_for_elsewhere = failure.rule is not None and failure.rule.action == "retry_elsewhere"
        if is_for_elsewhere:
            self.failed_at |= {self.attempts[-1].worker}
        self.failures += 1
        self.hangs += failure.is_idle
        is_first_hang = failure.is_idle and self.hangs == 1
        is_retryable = retry == "counted" or is_worth_another or is_first_hang or is_for_elsewhere
        another = is_retryable and self.failures < max_attempts
        self.state = TaskState.PENDING if another else TaskState.FAILED

    def give_up(self, failure: Failure) -> None:
        """Fail the task although attempts remain."""
        self.state, self.failure, self.is_interrupted = TaskState.FAILED, failure, False

    def keep_savepoint(self) -> None:
        """Let the next attempt continue from the savepoint.

        It waits for a worker with the partition at most as long as the task was trained: training again elsewhere
        takes as long.
        """
        trained_s = sum(attempt.ended - attempt.started for attempt in self.attempts if attempt.has_run)
        self.is_interrupted, self.waits_until = True, self.attempts[-1].ended + trained_s

    def retry(self) -> None:
        """Retry a failed task with new counters.

        After running out of memory it still changes workers or runs alone. Memory limits are learned again."""
        if self.state is TaskState.FAILED:
            self.state, self.failure, self.lacks = TaskState.PENDING, None, ()
            self.failures = self.hangs = self.losses = self.device_failures = 0

    def reopen(self) -> None:
        """Undo the commit: its output is unreadable or unusable, or the task is needed again."""
        self.state, self.result = TaskState.PENDING, None
