"""Run tasks in child processes: choose the child, start it, follow it and recover from failures.

Each `Slot` has one `Execution` for its thread. It takes children from the `ChildPool`, follows them with an
`AttemptRunner` (or `MemberRun` for a gang that another worker leads) and explains failures. It does not commit: the
slot reports the answer. An error here fails one attempt, with its cause, and not the worker.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro.contract.parallel_plans import SINGLE, MemoryKind, ParallelPlan
from cerebro.contract.tasks.bodies import (
    MEASURING,
    EtlTask,
    FittingTask,
    FusedTask,
    InspectTask,
    ModelTask,
    SearchTask,
    TaskBody,
    TrainTask,
    TrialTask,
)
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import (
    CerebroError,
    PermanentError,
    RequirementsError,
    RetryableError,
    StorageFullError,
    VolumeError,
)
from cerebro.runtime.tracebacks import line_of
from cerebro.runtime.usage.memory import own_group
from cerebro.runtime.volume_errors import platform_error, volume_errors_named
from cerebro.worker.agent.attempt_runner import Answer, AttemptRunner, Patience, clear_up
from cerebro.worker.agent.environment import archive_folder, python_for
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.gangs.member import MemberRun, Prepared
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.group_runner import GroupRunner
from cerebro.worker.agent.lease import Lease, attempts_of, name_of
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.processes.group import ChildGroup
from cerebro.worker.agent.processes.group_channel import Rank
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.reports import SupersededError
from cerebro.worker.agent.shared import Shared
from cerebro.worker.health.device_errors import device_fault_line
from cerebro.worker.health.failure_rules import apply_rules, end_of
from cerebro.worker.upkeep import unreadable_rows

log = logging.getLogger(__name__)

_TAIL = 4000
"""Bytes of log to search for the reason why a process died."""

_KINDS: dict[type[Exception], FailureKind] = {
    RequirementsError: FailureKind.REQUIREMENTS,
    StorageFullError: FailureKind.STORAGE_FULL,
    RetryableError: FailureKind.UNAVAILABLE,
    # The store lacks the archive or code, or it cannot be decoded: no attempt can succeed.
    PermanentError: FailureKind.DATA,
}
"""Failure kinds for attempts that could not start. The first match counts."""
_OF_MEMBERS: dict[type[Exception], FailureKind] = {
    RequirementsError: FailureKind.REQUIREMENTS,
    StorageFullError: FailureKind.STORAGE_FULL,
    VolumeError: FailureKind.UNAVAILABLE,
}
"""The same on another worker of a gang; other errors count as a lost member."""


class Execution:
    """Runs tasks one after another on one set of devices.

    Args:
        devices: ascending; () for tasks without devices.
        lease, mailbox: the slot's.
    """

    def __init__(self, shared: Shared, devices: tuple[int, ...], lease: Lease, mailbox: Mailbox) -> None:
        self._shared, self._kvs, self._settings = shared, shared.kvs, shared.settings
        self._handlers, self._children, self._drain = shared.handlers, shared.children, shared.drain
        self._devices, self._lease, self._mailbox = devices, lease, mailbox
        self.previous: TaskBody | None = None
        """The child's latest task if it succeeded."""
        self._early: tuple[InboxItem, ChildProcess | ChildGroup] | None = None
        """The task of a speculative start and its child."""
        self._remote: tuple[RemoteRank, ...] = ()
        """Ranks of the latest task on other workers."""
        self._newest: ChildProcess | ChildGroup | None = None
        """Child or group of the latest task."""
        self._tasks_before = 0
        """`tasks` of that child or group after the latest task. Children of a group also run other tasks."""

    def begin_early(self, item: InboxItem) -> None:
        """Start training while the store is asked to grant the attempt (speculative start).

        The store answers after a flush to disk and grants nearly all attempts. A refused one ends as if
        revoked. Excludes a model's first sub-epoch: it creates the model's folder, which must not reappear
        after the experiment was deleted.
        """
        body = item.body
        if not self.may_begin_early(item) or body is None:
            return
        child = self._newest
        if child is None or child.tasks != self._tasks_before or not child.has_code(_codes(body)):
            return
        if self._children.take_again(self._devices, _members(child)):
            self._early = item, child
            with suppress(OSError):  # it has ended, as the runner will notice
                self._send_task(child, item, {})

    def may_begin_early(self, item: InboxItem) -> bool:
        """True if the two tasks permit a speculative start; the child is checked separately."""
        body, previous = item.body, self.previous
        if not (isinstance(body, TrainTask) and isinstance(previous, TrainTask)):
            return False
        is_alike = (body.code, body.archive, _ranks(body)) == (
            previous.code,
            previous.archive,
            _ranks(previous),
        )
        is_gang = body.gang is not None or previous.gang is not None
        return body.checkpoint is not None and is_alike and not is_gang and not self._misfit(body)

    def end_early(self) -> None:
        """Undo a speculative start that the store refused."""
        if self._early is None:
            return
        (item, _), self._early = self._early, None
        self._children.done(self._devices, is_spent=True)
        with suppress(OSError):  # a volume that does not answer keeps the files
            clear_up(self._settings.volumes, item, is_refused=True)

    def run(self, item: InboxItem) -> list[tuple[InboxItem, Answer]]:
        """Run the attempts of an item after taking their leases. Return those that did not end before the others.

        Raises:
            SupersededError: another process has replaced this worker.
        """
        answers = self._run(item)
        if isinstance(item.body, FusedTask):
            running = set(map(name_of, self._lease.attempts))
            answers = [(attempt, answer) for attempt, answer in answers if name_of(attempt) in running]
        return [(attempt, self._explained(answer, attempt)) for attempt, answer in answers]

    def _explained(self, answer: Answer, item: InboxItem) -> Answer:
        return self._explained_failure(answer, item) if isinstance(answer, Failure) else answer

    def _explained_failure(self, answer: Failure, item: InboxItem) -> Failure:
        """Complete any failure of an attempt, including those that prevented a start."""
        body = item.body
        is_by_parallel_plan = (
            isinstance(body, TrainTask) and (body.parallel_plan or SINGLE).label != SINGLE.label
        )
        answer = unreadable_rows.explained(answer, body, self._settings.volumes)
        if unreadable_rows.drop_damaged(answer, body, self._settings.volumes):
            self._shared.reports.changed()
        failure = self._ruled(_classified(answer, body, self._task_log(item)), item)
        known: dict[str, bool | int] = {"is_by_parallel_plan": is_by_parallel_plan}
        if failure.memory_kind is not None and isinstance(body, ModelTask):
            known["limit_bytes"] = self._limit_bytes(failure.memory_kind)
        return failure.model_copy(update=known)

    def _limit_bytes(self, memory_kind: MemoryKind) -> int:
        """Return the memory limit in bytes, or 0 if unknown or shared with others.

        A container's limit is the worker's own; a machine's memory is not.
        """
        if memory_kind == "host":
            return (own_group().limit_bytes() or 0) if self._settings.pod is not None else 0
        devices = self._shared.devices.devices
        return min((devices[number].memory_bytes or 0 for number in self._devices), default=0)

    def _ruled(self, failure: Failure, item: InboxItem) -> Failure:
        """Apply failure rules. The cluster's come first, so a run's rules cannot hide them."""
        body = item.body
        if not isinstance(body, ModelTask | EtlTask | FittingTask):
            return failure
        logs = self._task_logs(item)
        path = logs[failure.rank] if failure.rank is not None and failure.rank < len(logs) else logs[0]
        return apply_rules(failure, path, (*self._settings.failure_rules, *body.rules))

    def _run(self, item: InboxItem) -> list[tuple[InboxItem, Answer]]:
        found = self._answers_or_failure(item)
        return [(attempt, found) for attempt in attempts_of(item)] if isinstance(found, Failure) else found

    def _answers_or_failure(self, item: InboxItem) -> list[tuple[InboxItem, Answer]] | Failure:
        try:
            if self._drain.is_requested and self._early is None:
                reason = f"{self._drain.why} before this task began"
                return Failure(kind=FailureKind.PREEMPTED, message=reason)
            return self._answers(item)
        except (RetryableError, PermanentError) as error:
            kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
            return Failure(kind=kind, message=str(error), volume=getattr(error, "path", ""))
        except OSError as error:
            if (found := platform_error(error, self._settings.volumes.roots)) is not None:
                is_full = isinstance(found, StorageFullError)
                kind = FailureKind.STORAGE_FULL if is_full else FailureKind.UNAVAILABLE
                return Failure(kind=kind, message=str(found), volume=found.path)
            return Failure(kind=FailureKind.CRASH, message=f"the process could not be started: {error}")
        except SupersededError:
            raise
        except Exception as error:
            # Any error here fails one attempt with its cause, and not the worker.
            log.exception("%s could not be followed", item.task)
            reason = f"the worker itself failed at this task: {line_of(error)}. Its log has more"
            return Failure(kind=FailureKind.CRASH, message=reason)

    def dismiss(self, item: InboxItem) -> None:
        """Release the other workers of a gang after the store has recorded the end."""
        if not isinstance(item.body, TrainTask) or item.body.gang is None:
            return
        self._endpoint.forget(name_of(item))
        remote, self._remote = self._remote, ()
        for rank in remote:
            rank.kill()
        if isinstance(self._newest, ChildGroup) and self._newest.is_gang:
            self.close()

    def join(self, item: InboxItem, *, is_lost: Callable[[], bool]) -> None:
        """Run this worker's ranks of a gang's attempt. Another worker leads and reports."""
        body, is_in_peace = item.body, False
        assert body is not None
        self.close()
        self.previous = None
        folders: list[Path] = []

        def prepare() -> Prepared | Failure:
            try:
                children = self._taken(body)
                codes = _codes(body)
                is_known = all(child.code == body.code and child.has_code(codes) for child in children)
                sent = {} if is_known else {sha256: self._kvs.code(sha256).encoded for sha256 in codes}
                folders.append(self._made_folder())
            except (CerebroError, OSError) as error:
                found = (kind for known, kind in _OF_MEMBERS.items() if isinstance(error, known))
                kind, volume = next(found, FailureKind.MEMBER_LOST), getattr(error, "path", "")
                return Failure(kind=kind, message=str(error), volume=volume)
            return Prepared(children=children, codes=sent, folder=folders[0])

        self._shared.task_logs.begin(self._task_logs(item))
        try:
            is_in_peace = MemberRun(
                item,
                self._endpoint,
                log_path=self._task_log(item),
                mailbox=self._mailbox,
                drain=self._drain,
                is_lost=is_lost,
            ).follow(prepare)
        except Exception:
            # The leader sees the closed connection; this worker continues.
            log.exception("this worker's part of %s could not be done", item.task)
        finally:
            self._shared.task_logs.end(self._task_logs(item))
            self._children.done(self._devices, is_spent=not is_in_peace)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _made_folder(self) -> Path:
        """Create a folder where the worker's next process finds it, if this one is killed."""
        rendezvous_root = self._settings.volumes.rendezvous_root(self._settings.worker)
        with volume_errors_named(rendezvous_root):
            rendezvous_root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=rendezvous_root))

    @property
    def _endpoint(self) -> GangEndpoint:
        """This worker's endpoint. A worker without one registers no address and gets no tasks of gangs."""
        assert self._shared.endpoint is not None
        return self._shared.endpoint

    def stacks(self) -> str:
        """Return the stacks of the latest task's processes, for people. Thread-safe."""
        child = self._newest
        return (
            "" if child is None else child.stacks() or f"no process says where it is: {child.kernel_state()}"
        )

    def close(self) -> None:
        """Dissolve the latest group: its processes run alone or not at all."""
        if isinstance(self._newest, ChildGroup):
            self._newest.close()
        self._newest = None

    def _answers(self, item: InboxItem) -> list[tuple[InboxItem, Answer]]:
        answers: list[tuple[InboxItem, Answer]] | None = None
        try:
            answers = self._follow(item)
            return answers
        finally:
            failures = [answer for _, answer in answers or () if isinstance(answer, Failure)]
            self._shared.task_logs.end(self._task_logs(item))
            # Without an answer the process's state is unknown. After a bad row, ETL continues in new
            # processes.
            is_bad_etl = isinstance(item.body, EtlTask | FittingTask) and failures
            is_measured = item.body is not None and item.body.kind in MEASURING
            # With several ranks, a failure is reported before they end and free their devices.
            is_bad_trial = is_measured and failures and isinstance(self._newest, ChildGroup)
            # A device error makes the process useless: every later call raises it again.
            is_device = any(each.kind is FailureKind.DEVICE or each.may_be_device for each in failures)
            # The peak may include leftovers of earlier sub-epochs, which the next attempt must not see.
            is_of_memory = any(each.kind is FailureKind.OUT_OF_MEMORY for each in failures)
            if answers is None or is_bad_etl or is_bad_trial or is_device or is_of_memory:
                self._children.done(self._devices, is_spent=True)
            elif self._newest is not None and is_measured:
                # A measurement must leave no device memory and no warm library for the next one.
                for child in _members(self._newest):
                    child.renew()
            if is_of_memory:
                self._children.end_idle("memory ran out")

    def _follow(self, item: InboxItem) -> list[tuple[InboxItem, Answer]]:
        body, self.previous = item.body, None
        assert body is not None
        if self._early is not None:
            (_, child), self._early = self._early, None
        elif misfit := self._misfit(body):
            failure = Failure(kind=FailureKind.NOT_APPLICABLE, message=misfit)
            return [(attempt, failure) for attempt in attempts_of(item)]
        else:
            received_at = time.monotonic()
            child = self._child_for(item)
            if child is not self._newest:
                self.close()
            self._newest = child
            known = child.code == body.code and child.has_code(_codes(body))
            codes = {} if known else {sha256: self._kvs.code(sha256).encoded for sha256 in _codes(body)}
            try:
                self._send_task(child, item, codes, received_at)
            except OSError:
                failure = child.reap()
                return [(attempt, failure) for attempt in attempts_of(item)]
        self._hint(child)
        limit_s = self._settings.etl_hang_timeout_s
        if isinstance(body, ModelTask | SearchTask):
            limit_s = body.hang_timeout_s
        elif isinstance(body, FusedTask):
            limit_s = body.first.hang_timeout_s
        options: dict[str, Any] = {
            "worker": self._settings.worker,
            "patience": Patience(limit_s, lambda: self._shared.gpu_share(self._devices)),
            "lease": self._lease,
            "drain": self._drain,
            "notification": self._mailbox,
            "on_notification": lambda: self._on_notification(child),
        }
        if isinstance(body, FusedTask):
            assert isinstance(child, ChildProcess)
            explain = self._explained_failure
            answers = GroupRunner(child, item, explain=explain, **options).follow_members()
        else:
            answers = [(item, AttemptRunner(child, item, **options).follow())]
        if not child.is_alive() and not self._lease.is_lost:
            clear_up(self._settings.volumes, item)
        if not isinstance(body, FusedTask) and isinstance(answers[0][1], TaskResult):
            self.previous, self._tasks_before = body, child.tasks
        return answers

    def _misfit(self, body: TaskBody) -> str:
        """Return why a parallel plan does not fit the assigned devices, or ""."""
        parallel_plan = _parallel_plan(body)
        if parallel_plan is None or parallel_plan.size == len(self._devices):
            return ""
        return (
            f"{parallel_plan.label} takes {parallel_plan.size} devices, but the sub-epoch was given "
            f"{len(self._devices)}"
        )

    def _send_task(
        self,
        child: ChildProcess | ChildGroup,
        item: InboxItem,
        codes: dict[str, str],
        requested_at: float | None = None,
    ) -> None:
        assert item.body is not None
        body, began = item.body, time.monotonic() if requested_at is None else requested_at
        self._shared.task_logs.begin(self._task_logs(item))
        if isinstance(body, FusedTask):
            self._share_log(item)
        child.run(body, item.attempt, codes, self._task_log(item), received_at=began)

    def _share_log(self, item: InboxItem) -> None:
        """Create one log for all attempts of a fused group, under the name of each."""
        first = self._task_log(item)
        with suppress(OSError):  # the process reports a log that cannot be written
            first.parent.mkdir(parents=True, exist_ok=True)
            first.touch()
            for path in {self._task_log(attempt) for attempt in attempts_of(item)} - {first}:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.hardlink_to(first)

    def _task_logs(self, item: InboxItem) -> tuple[Path, ...]:
        first, ranks = self._task_log(item), 1 if item.body is None else _ranks(item.body)
        rank_logs = (first.with_suffix(f".rank{rank}.log") for rank in range(1, ranks))
        return (first, *rank_logs)

    def _task_log(self, item: InboxItem) -> Path:
        return self._settings.volumes.task_log(item.experiment, item.task, item.attempt)

    def _on_notification(self, child: ChildProcess | ChildGroup) -> None:
        if not self._drain.is_requested:
            self._hint(child)

    def _hint(self, child: ChildProcess | ChildGroup) -> None:
        """Send the child its next task, so that it loads that model in advance."""
        item = self._mailbox.peek()
        if item is None or item.body is None or self._handlers[item.body.kind] != child.setting.handler:
            return
        if item.body.code != child.code:
            return  # another process will do it
        if self._lease.hinted != name_of(item):
            self._lease.hinted = name_of(item)
            try:
                child.preload(item.body)
            except OSError:
                log.info("the child ended before it received its next task, %s", item.task)

    def _child_for(self, item: InboxItem) -> ChildProcess | ChildGroup:
        body = item.body
        assert body is not None
        if isinstance(body, TrainTask) and body.gang is not None:
            # Register first: this worker may start slowly, and others should not wait for it.
            places = [(m.worker, device) for m in body.gang.members[1:] for device in m.devices]
            self._remote = tuple(RemoteRank(f"{worker}, device {device}") for worker, device in places)
            here = body.gang.ranks_of(0)
            self._endpoint.expect(name_of(item), dict(enumerate(self._remote, len(here))))
        children = self._taken(body)
        rendezvous_root = self._settings.volumes.rendezvous_root(self._settings.worker)
        if self._remote:
            return ChildGroup((*children, *self._remote), rendezvous_root, self._endpoint.host)
        if len(children) == 1:
            return children[0]
        if isinstance(self._newest, ChildGroup) and self._newest.children == children:
            return self._newest
        return ChildGroup(children, rendezvous_root)

    def _taken(self, body: TaskBody) -> tuple[ChildProcess, ...]:
        """Return this worker's processes for a task, by rank."""
        folder = archive_folder(self._kvs, self._settings.volumes, body.archive)
        parallel_plan = _parallel_plan(body)
        is_group = parallel_plan is not None and parallel_plan.processes == "ranks"
        parts = [(number,) for number in self._devices] if is_group else [self._devices]
        settings = [
            ChildSpec(
                handler=self._handlers[body.kind],
                python=python_for(folder, self._settings.volumes),
                archive=folder,
                share=self._shared.devices.share(part),
            )
            for part in parts
        ]
        return self._children.take(self._devices, settings)


def _classified(failure: Failure, body: TaskBody | None, log: Path) -> Failure:
    """Report a fault of the machine as such for tasks on models; for others, as an error of user code."""
    if not isinstance(body, ModelTask):
        kind = FailureKind.USER_ERROR if failure.kind is FailureKind.DEVICE else failure.kind
        return failure.model_copy(update={"kind": kind, "may_be_device": False})
    if failure.kind is not FailureKind.CRASH or not (line := device_fault_line(end_of(log, _TAIL))):
        return failure
    message = f"{failure.message}, after it had written: {line.strip()}"
    return failure.model_copy(update={"kind": FailureKind.DEVICE, "message": message})


def _members(child: ChildProcess | ChildGroup) -> tuple[ChildProcess, ...]:
    ranks: Sequence[Rank] = child.children if isinstance(child, ChildGroup) else (child,)
    return tuple(rank for rank in ranks if isinstance(rank, ChildProcess))


def _parallel_plan(body: TaskBody) -> ParallelPlan | None:
    if isinstance(body, FusedTask):
        return body.first.parallel_plan
    return body.parallel_plan if isinstance(body, TrainTask | TrialTask) else None


def _ranks(body: TaskBody) -> int:
    parallel_plan = _parallel_plan(body)
    return 1 if parallel_plan is None else parallel_plan.ranks


def _codes(body: TaskBody) -> frozenset[str]:
    """Return the hashes of the user code that a task needs: its spec and the user's own techniques."""
    parallel_plan = _parallel_plan(body)
    techniques = (
        (body.techniques or ())
        if isinstance(body, InspectTask)
        else ()
        if parallel_plan is None
        else (parallel_plan,)
    )
    spec_code = {body.code} if body.code else set()
    return frozenset(spec_code | {each.code for each in techniques if each.code is not None})
