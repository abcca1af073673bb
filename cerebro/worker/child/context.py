"""The handler's environment in the child process: volumes, decoded user code and progress reports."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from cerebro.contract.tasks import FittedRef, FittingTask, Savepoint, TaskBody, TaskResult
from cerebro.data.misc import fetch_misc
from cerebro.errors import PreemptedError, RetryableError, SpecError
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.child.channel import Channel
from cerebro.worker.child.device_memory import DeviceMemory
from cerebro.worker.child.messages import (
    Preempt,
    Preload,
    Progress,
    Ranks,
    Rendezvous,
    Saved,
    ToChild,
)
from cerebro.worker.child.rank_page import PAGE, Action, RankPage

PROGRESS_S = 1.0
"""Minimum seconds between progress messages. One per batch would cost more than a small batch."""


class Context:
    """Services for a handler, for the life of the child. Only for the child's main thread.

    Attributes:
        volumes: mounted volumes.
        cores: processor cores the worker may use.
        savepoint_s: seconds between savepoints of a sub-epoch, 0 for none, `None` for automatic.
        forked: monotonic time of the fork of this task process; 0 in other processes.
        has_raised: True if the task was preempted between batches; then any result of user code is ignored.
        is_cold: True if the task waits for its process or for imports; see `work_begins`.
        device_memory: memory limit of the task's device if counted; `listen` checks it.
        ranks: rank group of the task, or `None`.
        has_gpu: True if the process has a GPU.
    """

    def __init__(
        self,
        channel: Channel[ToChild],
        volumes: Volumes,
        cores: int,
        savepoint_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.volumes, self.cores, self.savepoint_s = volumes, cores, savepoint_s
        self.device_memory = DeviceMemory(memory_bytes)
        self._channel = channel
        self._codes: dict[str, str] = {}
        self._specs: dict[tuple[str, tuple[str, ...], FittedRef | None], Any] = {}
        self._opened: dict[str, Any] = {}
        self._told = 0.0
        self._wanted_end, self._deadline = "", 0.0
        self._asked = self._start_s = 0.0
        self.is_cold = True
        self.forked = 0.0
        self.has_raised = False
        self.ranks: Ranks | None = None
        self.has_gpu = False
        self._page: RankPage | None = None
        self._batch = self._announced = 0
        self._voted: tuple[int, Action] | None = None
        """Batch of the latest vote in a gang, and its result."""
        self.on_preload: Callable[[TaskBody], None] = lambda body: None
        self.vote: Callable[[int], int] | None = None
        """For a gang: collective operation that returns the maximum of all ranks' numbers."""

    @property
    def codes(self) -> dict[str, str]:
        """Encoded user code by hash, received until now."""
        return dict(self._codes)

    def learn(self, codes: Mapping[str, str]) -> None:
        """Add encoded user code by hash."""
        self._codes.update(codes)

    def spec_factory(
        self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None
    ) -> Callable[[], Any]:
        """Return a function that decodes the spec; each ETL process calls it.

        Args:
            fitted: reference to the result of `ETLSpec.fit` for the data set.

        Raises:
            SpecError: the code was not received.
            DataError: the fitted file is missing from the shared volume or damaged.
        """
        if sha256 not in self._codes:
            raise SpecError(f"user code {sha256[:12]} did not reach the worker: see the worker's log")
        encoded, misc_dir = self._codes[sha256], fetch_misc(misc, self.volumes.misc)
        content = None if fitted is None else read_fitted(self.volumes.shared / fitted.name, fitted)

        def make() -> Any:
            spec = decode(encoded)
            spec.misc_dir = misc_dir
            if content is not None:
                spec.fitted = restore_fitted(content)
            return spec

        return make

    def opened(self, sha256: str) -> Any:
        """Decode an object, such as a user's own technique, once per child.

        Raises:
            SpecError: the code was not received.
        """
        if sha256 not in self._opened:
            self._opened[sha256] = self.decoded(sha256)
        return self._opened[sha256]

    def decoded(self, sha256: str) -> Any:
        """Decode a new copy of an object, independent of earlier tasks.

        Raises:
            SpecError: the code was not received.
        """
        if sha256 not in self._codes:
            raise SpecError(f"user code {sha256[:12]} did not reach the worker: see the worker's log")
        return decode(self._codes[sha256])

    def spec(self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None) -> Any:
        """Decode and initialise the user's spec once per child. See `spec_factory`."""
        if (sha256, misc, fitted) not in self._specs:
            self.is_cold = True
            spec = self.spec_factory(sha256, misc, fitted)()
            spec.initialize_worker()
            self._specs[sha256, misc, fitted] = spec
        return self._specs[sha256, misc, fitted]

    def prepare(self, body: Any, *, initialises: bool) -> None:
        """Decode user code for such tasks, so that a fork of this process has its imports.

        Args:
            initialises: also create the spec, as `spec` does. Not for `fit`, which runs before
                `initialize_worker`.
        """
        if initialises and not isinstance(body, FittingTask):
            self.spec(body.code, body.misc, body.fitted)
        else:
            self.decoded(body.code)

    def progress(
        self,
        *,
        rows: int,
        total_rows: int,
        rows_failed: int = 0,
        batch: int = 0,
        values: Mapping[str, float] | None = None,
        final: bool = False,
    ) -> None:
        """Report progress, at most every `PROGRESS_S` unless `final`. Only rank 0 reports."""
        if self.ranks is not None and self.ranks.rank > 0:
            return
        now = time.monotonic()
        if not final and now - self._told < PROGRESS_S:
            return
        self._told = now
        self._channel.send(
            Progress(
                rows=rows,
                rows_failed=rows_failed,
                total_rows=total_rows,
                batch=batch,
                start_s=self._start_s,
                values=dict(values or {}),
            )
        )

    def is_progress_due(self) -> bool:
        """True if a progress message would be sent now."""
        if self.ranks is not None and self.ranks.rank > 0:
            return False
        return time.monotonic() - self._told >= PROGRESS_S

    def begin(self, received_at: float, ranks: Ranks | None = None) -> None:
        """Start a new task. Its first progress report is due after a full pause.

        Args:
            received_at, ranks: see `Run`.
        """
        self._told = time.monotonic()
        self._asked, self._start_s = received_at, 0.0
        self.is_cold = self.is_cold or self.forked > received_at
        self._wanted_end, self.has_raised = "", False
        self._join(ranks)

    def _join(self, ranks: Ranks | None) -> None:
        before, self.ranks = self.ranks, ranks
        self._batch = self._announced = 0
        self._voted = None
        if self._page is not None and (self.ranks is None or before != self.ranks):
            self._page.close()
            self._page = None
        if self.ranks is not None and self._page is None:
            self._page = RankPage(self.ranks.folder / PAGE, self.ranks.size)

    def work_begins(self) -> float:
        """Mark the end of start-up: process, imports and initialisation. Repeated calls have no effect.

        Returns:
            `Timings.start_s`: seconds since the agent saw the task, or 0 if everything was ready.
        """
        if self.is_cold:
            self.is_cold, self._start_s = False, max(0.0, time.monotonic() - self._asked)
        return self._start_s

    def listen(self) -> None:
        """Read pending messages of the agent. Call once at each batch boundary.

        Raises:
            OutOfMemoryError: the task exceeds its device's memory.
        """
        self.device_memory.check()
        self._batch += 1
        if self._page is not None and self.ranks is not None:
            self._page.reach(self.ranks.rank, self._batch)
        while (message := self._channel.pending()) is not None:
            self._heed(message)

    def _heed(self, message: ToChild) -> None:
        if isinstance(message, Preload):
            self.on_preload(message.body)
        elif isinstance(message, Preempt):
            self._wanted_end = message.reason
            self._deadline = time.monotonic() + message.grace_s

    def say_where(self, address: str) -> None:
        """Send the rendezvous address; called by rank 0 of a gang."""
        self._channel.send(Rendezvous(address=address))

    def hear_where(self) -> str:
        """Wait for rank 0's rendezvous address; called by other ranks of a gang.

        Raises:
            RetryableError: the agent is gone.
        """
        while (message := self._channel.receive()) is not None:
            if isinstance(message, Rendezvous):
                return message.address
            self._heed(message)
        raise RetryableError("the worker's agent is gone")

    @property
    def left_s(self) -> float | None:
        """Seconds until a preempted task is killed; `None` without a preemption."""
        return max(0.0, self._deadline - time.monotonic()) if self._wanted_end else None

    def saved(self, savepoint: Savepoint) -> None:
        """Report a savepoint that another attempt can continue from."""
        self._channel.send(Saved(savepoint=savepoint))

    def raise_if_ending(self) -> None:
        """Leave the task if the agent preempts it. Call after `listen` if more batches or rows follow.

        After its last batch, a task finishes and saves instead. All ranks leave at the same batch, later than
        the batch at which rank 0 received the request.

        Raises:
            PreemptedError: the task ends here.
        """
        is_here = bool(self._wanted_end)
        if self.ranks is not None:
            is_here = Action.END in self.together(Action.END if is_here else Action(0))
        if is_here:
            self.has_raised = True
            raise PreemptedError(self._wanted_end or "rank 0 was asked to end")

    def together(self, wanted: Action) -> Action:
        """Agree on an action at this batch boundary. Each rank calls it after `listen`; repeated calls are
        safe.

        Args:
            wanted: rank 0's choice, which alone decides. Announced for a later batch unless an earlier one is
                still pending.
        """
        if self.ranks is not None and self.ranks.address:
            return self._agreed(wanted)
        assert self._page is not None
        if wanted and self._announced < self._batch:
            self._announced = self._page.announce(wanted)
        return self._page.announced(self._batch)

    def _agreed(self, wanted: Action) -> Action:
        """Agree as `together` does, for ranks without shared memory: one collective operation per batch."""
        if self._voted is None or self._voted[0] != self._batch:
            assert self.vote is not None
            assert self.ranks is not None
            ending = Action.END if self._wanted_end else Action(0)
            mine = wanted | ending if self.ranks.rank == 0 else Action(0)
            self._voted = self._batch, Action(self.vote(int(mine)))
        return self._voted[1]

    def note_operations(self, number: int) -> None:
        """Record the number of collective operations a rank has begun. Thread-safe."""
        page, ranks = self._page, self.ranks
        if page is not None and ranks is not None:
            with suppress(ValueError):  # the page was closed in the meantime
                page.note(ranks.rank, number)

    def raise_if_ended(self) -> None:
        """Leave the task if user code swallowed the error of `raise_if_ending`.

        Called before a result of user code is used.

        Raises:
            PreemptedError: the task was left between batches.
        """
        if self.has_raised:
            raise PreemptedError(self._wanted_end)


class BaseHandler(ABC):
    """Base of each handler module's `Handler`, created with a `Context` once per user-code process.

    Importing a handler module must not start threads or access devices, because processes are forked from the
    importer.

    Attributes:
        keeps_process: True if one process runs all tasks of a user code; False if each task gets a new
            process.
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

    def preload(self, body: TaskBody) -> None:  # noqa: B027
        """Prepare for an expected task. Optional."""

    def rest(self) -> None:  # noqa: B027
        """Free large objects that can be rebuilt. May be called twice."""
