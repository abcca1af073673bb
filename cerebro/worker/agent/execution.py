"""Doing tasks in a child process: which child, told when, told what comes next, and what becomes of it.

Used by the thread of one slot. Whatever goes wrong here fails one attempt, with its cause, and not the worker.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cerebro.contract.parallel_plans import SINGLE, MemoryPlace, ParallelPlan
from cerebro.contract.tasks import (
    MEASURING,
    EtlTask,
    Failure,
    FailureKind,
    FittingTask,
    InboxItem,
    InspectTask,
    ModelTask,
    SearchTask,
    TaskBody,
    TaskResult,
    TrainTask,
    TrialTask,
)
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
from cerebro.worker.agent import unreadable_rows
from cerebro.worker.agent.attempt_runner import Answer, AttemptRunner, Patience, clear_up
from cerebro.worker.agent.device_errors import tells_of_device
from cerebro.worker.agent.environment import archive_folder, python_for
from cerebro.worker.agent.failure_rules import end_of, ruled
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.gangs.member import MemberRun, Prepared
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.group import ChildGroup
from cerebro.worker.agent.group_channel import Rank
from cerebro.worker.agent.lease import Lease, name_of
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.process import ChildProcess, ChildSpec
from cerebro.worker.agent.reports import SupersededError
from cerebro.worker.agent.shared import Shared

log = logging.getLogger(__name__)

_TAIL = 4000
"""Bytes of a log in which a process that died has perhaps told why."""

_KINDS: dict[type[Exception], FailureKind] = {
    RequirementsError: FailureKind.REQUIREMENTS,
    StorageFullError: FailureKind.STORAGE_FULL,
    RetryableError: FailureKind.UNAVAILABLE,
    # The archive or the code is not in the store, or cannot be opened: no task could do without.
    PermanentError: FailureKind.DATA,
}
"""Why an attempt could not begin; the first match counts."""
_OF_MEMBERS: dict[type[Exception], FailureKind] = {
    RequirementsError: FailureKind.REQUIREMENTS,
    StorageFullError: FailureKind.STORAGE_FULL,
    VolumeError: FailureKind.UNAVAILABLE,
}
"""The same on another worker of a gang; anything else is that worker's trouble."""


class Execution:
    """One task after another, on one set of devices.

    Args:
        devices: ascending; none for tasks that need none.
        lease, mailbox: of the slot.
    """

    def __init__(self, shared: Shared, devices: tuple[int, ...], lease: Lease, mailbox: Mailbox) -> None:
        self._shared, self._kvs, self._settings = shared, shared.kvs, shared.settings
        self._handlers, self._children, self._drain = shared.handlers, shared.children, shared.drain
        self._devices, self._lease, self._mailbox = devices, lease, mailbox
        self.previous: TaskBody | None = None
        """What the child did last, where it did it to its end."""
        self._early: tuple[InboxItem, ChildProcess | ChildGroup] | None = None
        """What the child was told to do before the store granted it."""
        self._remote: tuple[RemoteRank, ...] = ()
        """Of the newest task: ranks on other workers."""
        self._newest: ChildProcess | ChildGroup | None = None
        """The child, or group of them, that ran the newest task."""
        self._tasks_before = 0
        """How many tasks it had been given by then: children of a group do others' tasks in between."""

    def begin_early(self, item: InboxItem) -> None:
        """Have the child train while the store is asked, where a sub-epoch follows one of the same code.

        The store answers after a flush to disk. It grants nearly all that waits here; what it refuses ends as an
        attempt that was taken back. Not a model's first sub-epoch: it makes the model's folder, which must not come
        back after the experiment was deleted.
        """
        body = item.body
        if not self.may_begin_early(item) or body is None:
            return
        child = self._newest
        if child is None or child.tasks != self._tasks_before or not child.knows(_codes(body)):
            return
        if self._children.take_again(self._devices, _members(child)):
            self._early = item, child
            with suppress(OSError):  # it has ended, and is found to have when it is followed
                self._tell(child, item, {})

    def may_begin_early(self, item: InboxItem) -> bool:
        """Whether the two tasks allow it; the child is checked apart."""
        body, before = item.body, self.previous
        if not (isinstance(body, TrainTask) and isinstance(before, TrainTask)):
            return False
        is_alike = (body.code, body.archive, _ranks(body)) == (before.code, before.archive, _ranks(before))
        is_gang = body.gang is not None or before.gang is not None
        return body.checkpoint is not None and is_alike and not is_gang and not self._misfit(body)

    def end_early(self) -> None:
        """The store did not grant what the child was told to do: nothing is left of it."""
        if self._early is None:
            return
        (item, _), self._early = self._early, None
        self._children.done(self._devices, is_spent=True)
        with suppress(OSError):  # a volume that does not answer keeps what nobody needs
            clear_up(self._settings.volumes, item, is_refused=True)

    def run(self, item: InboxItem) -> Answer:
        """Do a task whose lease was taken.

        Raises:
            SupersededError: the worker is another process by now.
        """
        answer = self._run(item)
        body = item.body
        is_by_parallel_plan = (
            isinstance(body, TrainTask) and (body.parallel_plan or SINGLE).label != SINGLE.label
        )
        if not isinstance(answer, Failure):
            return answer
        # Whatever it failed of: also what keeps its processes from being started, or ends one before it begins.
        answer = unreadable_rows.explained(answer, body, self._settings.volumes)
        if unreadable_rows.drop_damaged(answer, body, self._settings.volumes):
            self._shared.reports.changed()
        asked = self._ruled(_as_asked(answer, body, self._task_log(item)), item)
        known: dict[str, bool | int] = {"is_by_parallel_plan": is_by_parallel_plan}
        if asked.place is not None and isinstance(body, ModelTask):
            known["limit_bytes"] = self._limit_bytes(asked.place)
        return asked.model_copy(update=known)

    def _limit_bytes(self, place: MemoryPlace) -> int:
        """How much memory there was; 0 where that is not known, or others take of it: a container's limit is the
        worker's own, a machine's memory is not."""
        if place == "host":
            return (own_group().limit_bytes() or 0) if self._settings.pod is not None else 0
        devices = self._shared.devices.devices
        return min((devices[number].memory_bytes or 0 for number in self._devices), default=0)

    def _ruled(self, failure: Failure, item: InboxItem) -> Failure:
        """By failure rules, those of the cluster first: a run's own may not hide them."""
        body = item.body
        if not isinstance(body, ModelTask | EtlTask | FittingTask):
            return failure
        logs = self._task_logs(item)
        path = logs[failure.rank] if failure.rank is not None and failure.rank < len(logs) else logs[0]
        return ruled(failure, path, (*self._settings.failure_rules, *body.rules))

    def _run(self, item: InboxItem) -> Answer:
        try:
            if self._drain.is_asked and self._early is None:
                reason = f"{self._drain.why} before this task began"
                return Failure(kind=FailureKind.PREEMPTED, message=reason)
            return self._answer(item)
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
            # Whatever it is: one attempt fails of it, with its cause, and not the worker with all that waits here.
            log.exception("%s could not be followed", item.task)
            reason = f"the worker itself failed at this task: {line_of(error)}. Its log has more"
            return Failure(kind=FailureKind.CRASH, message=reason)

    def dismiss(self, item: InboxItem) -> None:
        """The store knows how a task has ended: of a gang, other workers may go now, also those who are still to
        come."""
        if not isinstance(item.body, TrainTask) or item.body.gang is None:
            return
        self._endpoint.forget(name_of(item))
        remote, self._remote = self._remote, ()
        for rank in remote:
            rank.kill()
        if isinstance(self._newest, ChildGroup) and self._newest.is_gang:
            self.close()

    def join(self, item: InboxItem, *, is_lost: Callable[[], bool]) -> None:
        """Do this worker's part of a gang's attempt, which another worker leads and tells of."""
        body, is_in_peace = item.body, False
        assert body is not None
        self.close()
        self.previous = None
        folders: list[Path] = []

        def prepare() -> Prepared | Failure:
            try:
                children = self._taken(body)
                codes = _codes(body)
                is_known = all(child.code == body.code and child.knows(codes) for child in children)
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
            # Whatever it is: the one that leads finds the connection gone, and the worker goes on.
            log.exception("this worker's part of %s could not be done", item.task)
        finally:
            self._shared.task_logs.end(self._task_logs(item))
            self._children.done(self._devices, is_spent=not is_in_peace)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _made_folder(self) -> Path:
        """Where the next process of this worker finds it, should this one be killed."""
        rendezvous_root = self._settings.volumes.rendezvous_root(self._settings.worker)
        with volume_errors_named(rendezvous_root):
            rendezvous_root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=rendezvous_root))

    @property
    def _endpoint(self) -> GangEndpoint:
        """A worker without one registers without an address, so it is given no gang's task."""
        assert self._shared.endpoint is not None
        return self._shared.endpoint

    def stacks(self) -> str:
        """Where the processes of the newest task are, for people. Safe in any thread."""
        child = self._newest
        return "" if child is None else child.stacks() or f"no process says where it is: {child.doing()}"

    def close(self) -> None:
        """The processes that did the newest task together do the next one alone, or not at all."""
        if isinstance(self._newest, ChildGroup):
            self._newest.close()
        self._newest = None

    def _answer(self, item: InboxItem) -> Answer:
        answer: Answer | None = None
        try:
            answer = self._follow(item)
            return answer
        finally:
            self._shared.task_logs.end(self._task_logs(item))
            # Without an answer nobody knows what the process does now. And the rows that follow a bad one are
            # preprocessed by processes that have not met it.
            is_bad_etl = isinstance(item.body, EtlTask | FittingTask) and isinstance(answer, Failure)
            is_measured = item.body is not None and item.body.kind in MEASURING
            # Of several ranks, what failed is told before they end, and leave their devices.
            is_bad_trial = (
                is_measured and isinstance(answer, Failure) and isinstance(self._newest, ChildGroup)
            )
            # What a device's error leaves of a process is of no use: every later call raises it again.
            is_device = isinstance(answer, Failure) and (
                answer.kind is FailureKind.DEVICE or answer.may_be_device
            )
            # What it had at most may be what earlier sub-epochs left in it: the next attempt is not to meet that.
            is_of_memory = isinstance(answer, Failure) and answer.kind is FailureKind.OUT_OF_MEMORY
            if answer is None or is_bad_etl or is_bad_trial or is_device or is_of_memory:
                self._children.done(self._devices, is_spent=True)
            elif self._newest is not None and is_measured:
                # What measures leaves nothing to be measured with the next: no memory of a device, no warm library.
                for child in _members(self._newest):
                    child.renew()
            if is_of_memory:
                self._children.end_idle("memory ran out")

    def _follow(self, item: InboxItem) -> Answer:
        body, self.previous = item.body, None
        assert body is not None
        if self._early is not None:
            (_, child), self._early = self._early, None
        elif misfit := self._misfit(body):
            return Failure(kind=FailureKind.NOT_APPLICABLE, message=misfit)
        else:
            asked = time.monotonic()
            child = self._child_for(item)
            if child is not self._newest:
                self.close()
            self._newest = child
            known = child.code == body.code and child.knows(_codes(body))
            codes = {} if known else {sha256: self._kvs.code(sha256).encoded for sha256 in _codes(body)}
            try:
                self._tell(child, item, codes, asked)
            except OSError:
                return child.reap()
        self._hint(child)
        limit_s = self._settings.etl_hang_timeout_s
        if isinstance(body, ModelTask | SearchTask):
            limit_s = body.hang_timeout_s
        runner = AttemptRunner(
            child,
            item,
            worker=self._settings.worker,
            patience=Patience(limit_s, lambda: self._shared.gpu_share(self._devices)),
            lease=self._lease,
            drain=self._drain,
            notification=self._mailbox,
            on_notification=lambda: self._on_notification(child),
        )
        answer = runner.follow()
        if not child.is_alive() and not self._lease.is_lost:
            clear_up(self._settings.volumes, item)
        if isinstance(answer, TaskResult):
            self.previous, self._tasks_before = body, child.tasks
        return answer

    def _misfit(self, body: TaskBody) -> str:
        """Why the way of a sub-epoch does not go with the devices that it was given; empty if it does."""
        parallel_plan = _parallel_plan(body)
        if parallel_plan is None or parallel_plan.size == len(self._devices):
            return ""
        return (
            f"{parallel_plan.label} takes {parallel_plan.size} devices, but the sub-epoch was given "
            f"{len(self._devices)}"
        )

    def _tell(
        self,
        child: ChildProcess | ChildGroup,
        item: InboxItem,
        codes: dict[str, str],
        asked: float | None = None,
    ) -> None:
        assert item.body is not None
        body, began = item.body, time.monotonic() if asked is None else asked
        self._shared.task_logs.begin(self._task_logs(item))
        child.run(body.model_dump(mode="json"), item.attempt, codes, self._task_log(item), asked=began)

    def _task_logs(self, item: InboxItem) -> tuple[Path, ...]:
        """Of all ranks that may be here."""
        first, ranks = self._task_log(item), 1 if item.body is None else _ranks(item.body)
        others = (first.with_suffix(f".rank{rank}.log") for rank in range(1, ranks))
        return (first, *others)

    def _task_log(self, item: InboxItem) -> Path:
        return self._settings.volumes.task_log(item.experiment, item.task, item.attempt)

    def _on_notification(self, child: ChildProcess | ChildGroup) -> None:
        if not self._drain.is_asked:
            self._hint(child)

    def _hint(self, child: ChildProcess | ChildGroup) -> None:
        """Tell the child which task comes next, so that it loads that model meanwhile."""
        item = self._mailbox.peek()
        if item is None or item.body is None or self._handlers[item.body.kind] != child.setting.handler:
            return
        if item.body.code != child.code:
            return  # another process will do it
        if self._lease.hinted != name_of(item):
            self._lease.hinted = name_of(item)
            try:
                child.preload(item.body.model_dump(mode="json"))
            except OSError:
                log.info("the child ended before it could be told of %s", item.task)

    def _child_for(self, item: InboxItem) -> ChildProcess | ChildGroup:
        body = item.body
        assert body is not None
        if isinstance(body, TrainTask) and body.gang is not None:
            # First: this worker may take long to be ready, and the others are not to wait for nothing.
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
        """The processes of this worker for a task, by rank."""
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


def _as_asked(failure: Failure, body: TaskBody | None, log: Path) -> Failure:
    """Report a failure of the machine as such, for tasks on models only."""
    if not isinstance(body, ModelTask):
        kind = FailureKind.USER_ERROR if failure.kind is FailureKind.DEVICE else failure.kind
        return failure.model_copy(update={"kind": kind, "may_be_device": False})
    if failure.kind is not FailureKind.CRASH or not (line := tells_of_device(end_of(log, _TAIL))):
        return failure
    message = f"{failure.message}, after it had written: {line.strip()}"
    return failure.model_copy(update={"kind": FailureKind.DEVICE, "message": message})


def _members(child: ChildProcess | ChildGroup) -> tuple[ChildProcess, ...]:
    ranks: Sequence[Rank] = child.children if isinstance(child, ChildGroup) else (child,)
    return tuple(rank for rank in ranks if isinstance(rank, ChildProcess))


def _parallel_plan(body: TaskBody) -> ParallelPlan | None:
    return body.parallel_plan if isinstance(body, TrainTask | TrialTask) else None


def _ranks(body: TaskBody) -> int:
    """How many processes a task takes."""
    parallel_plan = _parallel_plan(body)
    return 1 if parallel_plan is None else parallel_plan.ranks


def _codes(body: TaskBody) -> frozenset[str]:
    """Hashes of the user code that a task needs: its spec, and techniques of the user's own."""
    parallel_plan = _parallel_plan(body)
    techniques = (
        (body.techniques or ())
        if isinstance(body, InspectTask)
        else ()
        if parallel_plan is None
        else (parallel_plan,)
    )
    own = {body.code} if body.code else set()
    return frozenset(own | {each.code for each in techniques if each.code is not None})
