"""The handler's environment in the child process: services, progress reports and preemption.

The task loop creates one `Context` for each user code. Handlers subclass `BaseHandler` and use the context to report
progress, to hear the agent between batches and to decode user code. The context knows no kind of task.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from cerebro.contract.tasks.bodies import FusedTask, TaskBody
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import NotApplicableError, PreemptedError, RetryableError
from cerebro.runtime.volumes import Volumes
from cerebro.worker.child.device_memory import DeviceMemory
from cerebro.worker.child.members import Members
from cerebro.worker.child.preemption import Preemption
from cerebro.worker.child.rank_agreement import RankAgreement
from cerebro.worker.child.rank_page import Action
from cerebro.worker.child.start_up import StartUp
from cerebro.worker.child.user_code import UserCode
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import (
    Preempt,
    Preload,
    Progress,
    Ranks,
    Rendezvous,
    Saved,
    ToChild,
)

PROGRESS_S = 1.0
"""Minimum seconds between progress messages. One per batch would cost more than a small batch."""


class Context:
    """Services for a handler, for the life of the child. Only for the child's main thread.

    Attributes:
        volumes: mounted volumes.
        cores: processor cores the worker may use.
        savepoint_s: seconds between savepoints of a sub-epoch, 0 for none, `None` for automatic.
        has_gpu: True if the process has a GPU.
        frozen_cache_bytes: maximum bytes of stored outputs of frozen layers; 0 for none.
        device_memory: memory limit of the task's device if counted; `listen` checks it.
        start_up: start-up time of the task.
        user_code: decoded user code.
        preemption: the agent's request to leave the task.
        members: members of the fused group, if the task is one.
        agreement: the task's ranks, and their common actions.
        on_preload: called with an expected task.
    """

    def __init__(
        self,
        channel: Channel[ToChild],
        volumes: Volumes,
        cores: int,
        savepoint_s: float | None = None,
        memory_bytes: int | None = None,
        *,
        has_gpu: bool = False,
        frozen_cache_bytes: int = 0,
    ) -> None:
        self.frozen_cache_bytes = frozen_cache_bytes
        self.volumes, self.cores, self.savepoint_s, self.has_gpu = volumes, cores, savepoint_s, has_gpu
        self.device_memory = DeviceMemory(memory_bytes)
        self.start_up = StartUp()
        self.user_code = UserCode(volumes, self.start_up)
        self.preemption, self.agreement, self.members = Preemption(), RankAgreement(), Members()
        self.on_preload: Callable[[TaskBody], None] = lambda body: None
        self._channel = channel
        self._last_report = 0.0

    @property
    def ranks(self) -> Ranks | None:
        """Rank group of the task, or `None`."""
        return self.agreement.ranks

    def begin(self, received_at: float, ranks: Ranks | None = None) -> None:
        """Start a new task. Its first progress report is due after a full pause.

        Args:
            received_at, ranks: see `Run`.
        """
        self._last_report = time.monotonic()
        self.start_up.begin(received_at)
        self.preemption.begin()
        self.members.begin()
        self.agreement.begin(ranks)

    def progress(
        self,
        *,
        rows: int,
        total_rows: int,
        rows_failed: int = 0,
        batch: int = 0,
        values: Mapping[str, float] | None = None,
        final: bool = False,
        member: int = 0,
    ) -> None:
        """Report progress, at most every `PROGRESS_S` unless `final`. Only rank 0 reports.

        Args:
            member: number of the member of a fused group.
        """
        if not self.agreement.is_leader or not (final or self.is_progress_due()):
            return
        self._last_report = time.monotonic()
        self._channel.send(
            Progress(
                rows=rows,
                rows_failed=rows_failed,
                total_rows=total_rows,
                batch=batch,
                start_s=self.start_up.seconds,
                values=dict(values or {}),
                member=member,
            )
        )

    def is_progress_due(self) -> bool:
        """True if a progress message would be sent now."""
        return self.agreement.is_leader and time.monotonic() - self._last_report >= PROGRESS_S

    def listen(self) -> None:
        """Read pending messages of the agent. Call once at each batch boundary.

        Raises:
            OutOfMemoryError: the task exceeds its device's memory.
        """
        self.device_memory.check()
        self.agreement.reach_batch()
        while (message := self._channel.pending()) is not None:
            self._handle(message)

    def _handle(self, message: ToChild) -> None:
        if isinstance(message, Preload):
            self.on_preload(message.body)
        elif isinstance(message, Preempt) and message.member is not None:
            self.members.request_exit(message)
        elif isinstance(message, Preempt):
            self.preemption.request(message)

    def publish_address(self, address: str) -> None:
        """Send the rendezvous address; called by rank 0 of a gang."""
        self._channel.send(Rendezvous(address=address))

    def await_address(self) -> str:
        """Wait for rank 0's rendezvous address; called by other ranks of a gang.

        Raises:
            RetryableError: the agent is gone.
        """
        while (message := self._channel.receive()) is not None:
            if isinstance(message, Rendezvous):
                return message.address
            self._handle(message)
        raise RetryableError("the worker's agent is gone")

    def saved(self, savepoint: Savepoint, member: int = 0) -> None:
        """Report a savepoint that another attempt can continue from; `member` as in `progress`."""
        self._channel.send(Saved(savepoint=savepoint, member=member))

    def agree(self, requested: Action) -> Action:
        """Agree with the other ranks on an action at this batch boundary; see `RankAgreement.agree`."""
        return self.agreement.agree(requested, is_preempted=self.preemption.is_requested)

    def raise_if_ending(self) -> None:
        """Leave the task if the agent preempts it. Call after `listen` if more batches or rows follow.

        After its last batch, a task finishes and saves instead. All ranks leave at the same batch, a later one
        than rank 0's at the request.

        Raises:
            PreemptedError: the task ends here.
        """
        is_ending = self.preemption.is_requested
        if self.ranks is not None:
            is_ending = Action.END in self.agree(Action.END if is_ending else Action(0))
        if is_ending:
            self.preemption.has_raised = True
            raise PreemptedError(self.preemption.reason or "rank 0 was asked to end")

    def pause(self) -> None:
        """Read pending messages within a batch, in a long computation of the platform.

        Ranks agree at batches only, so a rank continues to its next batch.

        Raises:
            OutOfMemoryError: the task exceeds its device's memory.
            PreemptedError: the task ends here.
        """
        self.device_memory.check()
        if self.ranks is None:
            while (message := self._channel.pending()) is not None:
                self._handle(message)
            self.raise_if_ending()

    def raise_if_ended(self) -> None:
        """Leave the task if user code swallowed the error of `raise_if_ending`.

        Called before a result of user code is used.

        Raises:
            PreemptedError: the task was left between batches.
        """
        if self.preemption.has_raised:
            raise PreemptedError(self.preemption.reason)


class BaseHandler(ABC):
    """Base of each handler module's `Handler`, created with a `Context` once per user-code process.

    Importing a handler module must not start threads or access devices, because processes are forked from the importer.

    Attributes:
        keeps_process: True if one process runs all tasks of a user code; False if each task gets a new process.
    """

    keeps_process: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self._context, self._volumes = context, context.volumes

    @staticmethod  # noqa: B027 - most have nothing to prepare
    def before_fork() -> None:
        """Prepare the importing process before it forks. Must not start threads."""

    @abstractmethod
    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Execute one task. Exceptions become a `Failure`."""

    def handle_group(self, task: FusedTask) -> None:
        """Execute a fused group, and report the end of each member to `Context.members`.

        An exception becomes the `Failure` of all members that have not ended.

        Raises:
            NotApplicableError: the models cannot be trained together.
        """
        raise NotApplicableError(f"this worker does not train {len(task.members)} models together")

    def preload(self, body: TaskBody) -> None:  # noqa: B027
        """Prepare for an expected task. Optional."""

    def free_memory(self) -> None:  # noqa: B027
        """Free large objects that can be rebuilt. May be called twice."""
