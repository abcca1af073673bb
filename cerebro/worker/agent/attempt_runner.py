"""Follow one attempt in its child process, from start to answer.

`execution.Execution` creates an `AttemptRunner` for each attempt that this worker leads. It reads the child's messages,
and ends an attempt that hangs, was revoked or delays the worker's shutdown. Its answer is a result or a `Failure`. It
does not access the store: `Lease` and `slot` report.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cerebro.contract.events import LivePoint
from cerebro.contract.rest.api import YIELD_S
from cerebro.contract.tasks.bodies import (
    EtlTask,
    FittingTask,
    FusedTask,
    InspectTask,
    ModelTask,
    SearchTask,
    TrainTask,
    TrialTask,
)
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.files.durable import discard_leftovers
from cerebro.runtime.volumes import Volumes, checkpoint_file, savepoint_of, sub_epoch_of
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.lease import Lease, attempts_of
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.processes.group import ChildGroup
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.health.activity import process_states, waits_in
from cerebro.worker.health.hang_detection import Activity, Verdict, Watch
from cerebro.worker.protocol.messages import (
    Done,
    Failed,
    FromChild,
    GroupEnded,
    MemberEnded,
    Preempted,
    Progress,
    Ready,
    Rendezvous,
    Saved,
)

log = logging.getLogger(__name__)

_START_S = 300.0
"""Seconds within which a child must report that it is ready."""

_LONGEST_WAIT_S = 3600.0
"""Maximum seconds of one wait. The kernel takes no infinite timeout, which a run may request."""

_LAST_S = 5.0
"""Seconds between the two stack dumps of an attempt that has exceeded its limit."""

_STRICT = InspectTask | TrialTask | SearchTask
"""Tasks that report no progress: the limit applies to the entire task."""

Answer = TaskResult | Failure


class Patience(NamedTuple):
    """Limits of an attempt that reaches no batch.

    Attributes:
        limit_s: seconds without progress after which an attempt hangs unless it computes.
        gpu: returns the fraction of its devices that are GPUs in use now.
    """

    limit_s: float
    gpu: Callable[[], float] = lambda: 0.0


class Suspicion(NamedTuple):
    """A suspected hang. The attempt is ended unless it advances before `ends`.

    Attributes:
        quiet_s: seconds since it last advanced.
        in_kernel: processes in an uninterruptible wait.
    """

    verdict: Verdict
    quiet_s: float
    ends: float
    in_kernel: frozenset[int]


class AttemptRunner:
    """Follows one attempt, in the agent's main thread.

    Args:
        child: process that has been sent the task.
        patience: limits for a hang.
        notification: readable after a change of the inbox, the lease or the worker's drain.
        on_notification: called after each notification is drained.
    """

    def __init__(
        self,
        child: ChildProcess | ChildGroup,
        item: InboxItem,
        *,
        worker: str,
        patience: Patience,
        lease: Lease,
        drain: Drain,
        notification: Mailbox,
        on_notification: Callable[[], None],
    ) -> None:
        self._child, self._item, self._worker, self._gpu = child, item, worker, patience.gpu
        self._lease, self._drain, self._notification, self._on_notification = (
            lease,
            drain,
            notification,
            on_notification,
        )
        # The activity of ranks on other workers is not visible here.
        is_strict = isinstance(item.body, _STRICT) or (isinstance(child, ChildGroup) and child.is_gang)
        self._watch = Watch(patience.limit_s, time.monotonic(), is_strict)
        self._position = (-1, -1)
        self._has_preempted = self._has_saved = False
        self._suspected: Suspicion | None = None

    def follow(self) -> Answer:
        """Wait until the child answers, dies or hangs, or the attempt has to end."""
        refused_before = self._child.channel.num_refused
        answer = self._follow()
        num_refused = self._child.channel.num_refused - refused_before
        if not num_refused:
            return answer
        wrote = (
            "user code wrote to the connection between its process and the worker, which it did not open: "
            f"{num_refused} lines were no valid message, such as {self._child.channel.last_refused!r}"
        )
        log.warning("%s", wrote)
        if not isinstance(answer, Failure) or not answer.kind.traits.is_unexplained:
            return answer
        return answer.model_copy(update={"message": f"{answer.message}. Before that, {wrote}"})

    def _follow(self) -> Answer:
        child = self._child
        with selectors.DefaultSelector() as selector:
            for source in (child.channel, self._notification, child.end):
                selector.register(source, selectors.EVENT_READ)
            while True:
                message = child.channel.pending()
                if message is None:
                    timeout_s = min(self._next_check_s(), self._drain.remaining_s, _LONGEST_WAIT_S)
                    ready = {key.fileobj for key, _ in selector.select(timeout_s)}
                    if self._notification in ready:
                        self._notification.drain()  # first: it may announce what the next line checks
                        self._on_notification()
                    verdict = self._verdict()
                    if verdict is not None:
                        return verdict
                    # A message sent before the process ended counts.
                    message = child.channel.pending()
                    if message is None and (child.end in ready or child.channel.is_closed):
                        return child.reap()
                    if (
                        message is None
                        and self._next_check_s() <= 0
                        and (failure := self._check_hang()) is not None
                    ):
                        return failure
                answer = self._handled(message) if message is not None else None
                if answer is not None:
                    return answer

    def _verdict(self) -> Failure | None:
        """Return why the attempt has to end, after killing its process, or `None`."""
        if self._lease.is_lost or self._drain.is_superseded:
            return self._kill(FailureKind.PREEMPTED, "the attempt was revoked")
        if not self._has_preempted and (self._drain.is_requested or self._lease.release_reason):
            self._has_preempted = True
            why, left_s = self._lease.release_reason, YIELD_S
            if self._drain.is_requested:
                why, left_s = self._drain.why, self._drain.remaining_s
            self._child.preempt(why, grace_s=left_s)
            log.info("the process was asked to leave %s: %s", self._item.task, why)
        if self._drain.remaining_s <= 0:
            reason = "it came to no batch boundary in time, so its process was ended"
            return self._kill(FailureKind.PREEMPTED, f"{self._drain.why}; {reason}")
        return None

    def _check_hang(self) -> Failure | None:
        """Check for a hang. A suspected hang dumps stacks to the log; a confirmed one ends the attempt."""
        now = time.monotonic()
        if self._suspected is not None:
            return self._hang_failure(self._suspected)
        verdict: Verdict = "idle"
        if self._child.is_ready:
            verdict = self._watch.check(now, self._activity())
        if verdict != "goes on":
            self._child.stacks()
            quiet_s = self._watch.limit if verdict == "idle" else now - self._watch.since
            more_s = min(_LAST_S, self._watch.cap_s)
            self._suspected = Suspicion(verdict, quiet_s, time.monotonic() + more_s, self._in_kernel())
        return None

    def _activity(self) -> Activity:
        found = process_states(self._child.pids)
        spent_s = {each.pid: each.spent_s for each in found}
        return Activity(spent_s=spent_s, is_runnable=any(each.is_runnable for each in found), gpu=self._gpu())

    def _in_kernel(self) -> frozenset[int]:
        return frozenset(each.pid for each in process_states(self._child.pids) if each.is_in_kernel)

    def _hang_failure(self, suspected: Suspicion) -> Failure:
        what, hint = "batch", "If the work is only slow, raise Limits(hang_timeout_s=...)"
        if isinstance(self._item.body, FittingTask):
            what = "batch or object"
            hint = "ETLSpec.fit has to ask for its next batch, or to return, within that time: do less between two"
        elif isinstance(self._item.body, EtlTask):
            what, hint = "row", "A call of the row or batch function must not take so long, nor may an object"
        found = self._child.stacks()
        quiet = f"no {what} for {suspected.quiet_s:.6g} s"
        if suspected.verdict == "busy":
            quiet += ", though its processes compute"
        elif suspected.in_kernel and (stuck := suspected.in_kernel & self._in_kernel()):
            failure = self._kill(FailureKind.UNAVAILABLE, f"{quiet}: {_kernel_wait_text(min(stuck))}")
            return failure.model_copy(update={"traceback": found})
        ended, rank = self._child.describe_hang()
        where = "" if found else "; it did not say where it is, as one that waits for a disk cannot"
        failure = self._kill(FailureKind.HANG, f"{quiet}: {ended}{where}. {hint}")
        is_idle = isinstance(self._item.body, ModelTask | FusedTask) and suspected.verdict == "idle"
        return failure.model_copy(update={"rank": rank, "traceback": found, "is_idle": is_idle})

    def _handled(self, message: FromChild) -> Answer | None:
        """Handle a message. Refuse forged ones: user code may have written them."""
        try:
            return self._take(message)
        except ValueError:
            self._child.channel.refuse(message)
            return None

    def _take(self, message: FromChild) -> Answer | None:
        match message:
            case Ready():
                self._child.is_ready = True
                self._restart(time.monotonic())
            case Progress():
                self._progress(self._point(message, self._item))
            case Saved():
                self._saved(message.savepoint, self._item)
            case Done():
                return message.result
            case Failed():
                return self._child.explained(message.failure)
            case Preempted():
                return self._preempted()
            case (
                Rendezvous() | MemberEnded() | GroupEnded()
            ):  # a group has forwarded it; a single process has no ranks
                self._child.channel.refuse(message)
        return None

    def _progress(self, point: LivePoint) -> None:
        position = (point.rows, point.batch)
        if position != self._position:
            is_last = 0 < point.total_rows <= point.rows
            self._watch.advance(time.monotonic(), batch=point.batch, is_last=is_last)
            self._position, self._suspected = position, None
        self._lease.progress(point)

    def _preempted(self) -> Failure:
        if not (self._has_preempted or self._gang_leaves):
            # Reported as a preemption, it would tell the controller that this worker shuts down.
            reason = "user code raised PreemptedError, but this worker was not asked to end"
            hint = "That error is Cerebro's own: raise another one. The task's log has the traceback"
            return Failure(kind=FailureKind.USER_ERROR, message=f"{reason}. {hint}")
        how = "goes on from there" if self._has_saved else "is done again from its start, or a savepoint"
        why = self._drain.why or self._lease.release_reason or self._gang_leaves
        return Failure(
            kind=FailureKind.PREEMPTED, message=f"{why}; it was left between two batches and {how}"
        )

    @property
    def _gang_leaves(self) -> str:
        """Reason why another worker of the gang requested the end, or ""."""
        return self._child.channel.leaving if isinstance(self._child, ChildGroup) else ""

    def _saved(self, savepoint: Savepoint, item: InboxItem) -> None:
        """Record a savepoint if it is from this attempt. User code may have written the message."""
        folder, _, name = savepoint.checkpoint.name.rpartition("/")
        body = item.body
        if not isinstance(body, TrainTask) or folder != f"{body.experiment}/{body.run}/{body.model}":
            raise ValueError(folder)
        if (sub_epoch_of(name), savepoint_of(name)) != (
            body.sub_epoch,
            (item.attempt, savepoint.batch),
        ):
            raise ValueError(name)
        self._has_saved = True
        self._restart(time.monotonic())
        self._lease.save(savepoint, item)

    def _next_check_s(self) -> float:
        now = time.monotonic()
        if self._suspected is not None:
            return max(0.0, self._suspected.ends - now)
        if self._child.is_ready:
            return self._watch.due_s(now)
        # Importing torch is not user code and may take long on a busy machine.
        return max(0.0, self._watch.since + max(self._watch.cap_s, _START_S) - now)

    def _restart(self, at: float) -> None:
        self._watch.restart(at)
        self._suspected = None

    def _kill(self, kind: FailureKind, message: str) -> Failure:
        self._child.kill()
        return Failure(kind=kind, message=message)

    def _point(self, message: Progress, item: InboxItem) -> LivePoint:
        values = message.model_dump(exclude={"member"})
        return LivePoint(task=item.task, attempt=item.attempt, worker=self._worker, **values)


def _kernel_wait_text(pid: int) -> str:
    where = waits_in(pid)
    return (
        f"process {pid} waits in the kernel{f' ({where})' if where else ''}, where no signal reaches it: a volume or a "
        "device does not answer. The task is tried again; see `cerebro doctor`, and whether the volumes of this worker "
        "can be read and written"
    )


def clear_up(volumes: Volumes, item: InboxItem, *, is_refused: bool = False) -> None:
    """Remove the partial checkpoint of an ended process. The next ETL of a partition clears its shards.

    Args:
        is_refused: True if the store never granted the attempt; then also remove its complete checkpoint and log.
    """
    body = item.body
    if isinstance(body, FusedTask):
        for attempt in attempts_of(item):
            clear_up(volumes, attempt, is_refused=is_refused)
    if not isinstance(body, TrainTask):
        return
    folder = volumes.model_checkpoints(body.experiment, body.run, body.model)
    name = checkpoint_file(
        sub_epoch=body.sub_epoch,
        epoch=body.epoch,
        partition=body.partition,
        other_partitions=body.other_partitions,
        attempt=item.attempt,
    )
    savepoints = f"{name.removesuffix('.pt')}.s*.pt"
    discard_leftovers(folder, name)
    discard_leftovers(folder, f"{name.removesuffix('.pt')}.frozen")
    discard_leftovers(folder, savepoints)
    if is_refused:
        task_log = volumes.task_log(item.experiment, item.task, item.attempt)
        of_ranks = task_log.parent.glob(f"{task_log.stem}.rank*.log")
        for path in (folder / name, *folder.glob(savepoints), task_log, *of_ranks):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # other attempts have logs there
            task_log.parent.rmdir()
