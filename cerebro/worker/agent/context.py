"""What a handler has at hand inside the child process: volumes, decoded user code, a way to say how far it is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cerebro.contract.tasks import FittedRef, FittingTask, Savepoint, TaskBody, TaskResult
from cerebro.data.misc import fetch_misc
from cerebro.errors import PreemptedError, RetryableError, SpecError
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.agent.channel import Channel
from cerebro.worker.agent.device_memory import DeviceMemory
from cerebro.worker.agent.rank_page import PAGE, Action, RankPage

PROGRESS_S = 1.0
"""Shortest pause between two progress messages: per-batch reports would cost more than small batches."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Of a task that several processes do together, what one of them has to know.

    Attributes:
        rank, size: number of this process, from 0; of so many.
        folder: private, where they meet. The same one as for the task before: they have met, and have not parted. Of a
            gang: of those on this worker.
        address: of this worker, as the others of a gang reach it; empty: all ranks are here.
    """

    rank: int
    size: int
    folder: Path
    address: str = ""


class Context:
    """Given to a handler; lives as long as the child. Used by the child's main thread only.

    Attributes:
        volumes: mounted volumes.
        cores: processor cores the worker may use.
        savepoint_s: seconds between two savepoints of a sub-epoch, 0 for none; `None`: as it is best.
        forked: monotonic time of the fork of this task process; 0 in other processes.
        has_raised: whether the task was left in its middle: whatever user code made of that, there is no result.
        is_cold: whether this task has to wait for its process, or for user code to be imported: see `work_begins`.
        device_memory: what the task may take of its device, where that is counted; `listen` looks at it.
        ranks: with whom the task is done together; `None`: alone.
        has_gpu: whether the process was given a GPU of its worker.
    """

    def __init__(
        self,
        channel: Channel,
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
        """The batch at which the ranks of a gang were last of one mind, and about what."""
        self.on_preload: Callable[[dict[str, Any]], None] = lambda body: None
        self.vote: Callable[[int], int] | None = None
        """Of a gang: a collective operation that tells all ranks the largest of their numbers."""

    @property
    def codes(self) -> dict[str, str]:
        """Encoded user code by hash, as far as it has come here."""
        return dict(self._codes)

    def learn(self, codes: Mapping[str, str]) -> None:
        """Take in encoded user code by hash."""
        self._codes.update(codes)

    def spec_factory(
        self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None
    ) -> Callable[[], Any]:
        """A function that decodes the spec; ETL calls it in each of its processes.

        Args:
            fitted: what `ETLSpec.fit` returned for the data set, if anything.

        Raises:
            SpecError: the code is not here.
            DataError: what was fitted is not on the shared volume any more, or damaged.
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
        """What was encoded as this, decoded once per child: a technique of the user's own.

        Raises:
            SpecError: it is not here.
        """
        if sha256 not in self._opened:
            self._opened[sha256] = self.decoded(sha256)
        return self._opened[sha256]

    def decoded(self, sha256: str) -> Any:
        """The same, decoded anew: an object that has met no task before.

        Raises:
            SpecError: it is not here.
        """
        if sha256 not in self._codes:
            raise SpecError(f"user code {sha256[:12]} did not reach the worker: see the worker's log")
        return decode(self._codes[sha256])

    def spec(self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None) -> Any:
        """The user's spec, decoded and initialised once per child. Arguments and errors as of `spec_factory`."""
        if (sha256, misc, fitted) not in self._specs:
            self.is_cold = True
            spec = self.spec_factory(sha256, misc, fitted)()
            spec.initialize_worker()
            self._specs[sha256, misc, fitted] = spec
        return self._specs[sha256, misc, fitted]

    def prepare(self, body: Any, *, initialises: bool) -> None:
        """Decode the user's code for tasks like this one, so that a fork of this process finds its imports done.

        Args:
            initialises: make the spec, too, as `spec` does; not for `fit`, which runs before `initialize_worker`.
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
        """Say how far the task is; dropped when said less than `PROGRESS_S` ago, unless `final`. Rank 0 speaks for
        all."""
        if self.ranks is not None and self.ranks.rank > 0:
            return
        now = time.monotonic()
        if not final and now - self._told < PROGRESS_S:
            return
        self._told = now
        self._channel.send(
            {
                "is": "progress",
                "rows": rows,
                "rows_failed": rows_failed,
                "total_rows": total_rows,
                "batch": batch,
                "start_s": self._start_s,
                "values": dict(values or {}),
            }
        )

    def is_progress_due(self) -> bool:
        """Whether a progress message would be sent now."""
        if self.ranks is not None and self.ranks.rank > 0:
            return False
        return time.monotonic() - self._told >= PROGRESS_S

    def begin(self, asked: float, ranks: Mapping[str, Any] | None = None) -> None:
        """A new task starts, for which the agent was `asked` then, by the monotonic clock: its first progress is due a
        full pause from now.

        Args:
            ranks: what `Ranks` says.
        """
        self._told = time.monotonic()
        self._asked, self._start_s = asked, 0.0
        self.is_cold = self.is_cold or self.forked > asked
        self._wanted_end, self.has_raised = "", False
        self._join(ranks)

    def _join(self, ranks: Mapping[str, Any] | None) -> None:
        before, self.ranks = self.ranks, None
        self._batch = self._announced = 0
        if ranks is not None:
            folder = Path(ranks["folder"])
            address = ranks.get("address", "")
            self.ranks = Ranks(rank=ranks["rank"], size=ranks["size"], folder=folder, address=address)
        self._voted = None
        if self._page is not None and (self.ranks is None or before != self.ranks):
            self._page.close()
            self._page = None
        if self.ranks is not None and self._page is None:
            self._page = RankPage(self.ranks.folder / PAGE, self.ranks.size)

    def work_begins(self) -> float:
        """The task's own work begins: the process is there, user code is imported and initialised. Calling it again has
        no effect.

        Returns:
            `Timings.start_s`: seconds since the agent saw the task, or 0 where all was there already.
        """
        if self.is_cold:
            self.is_cold, self._start_s = False, max(0.0, time.monotonic() - self._asked)
        return self._start_s

    def listen(self) -> None:
        """Take in what the agent said meanwhile; called once at each batch boundary.

        Raises:
            OutOfMemoryError: the task takes more of its device than there is.
        """
        self.device_memory.check()
        self._batch += 1
        if self._page is not None and self.ranks is not None:
            self._page.reach(self.ranks.rank, self._batch)
        while (message := self._channel.pending()) is not None:
            self._heed(message)

    def _heed(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "preload":
            self.on_preload(message["body"])
        elif message["do"] == "end":
            self._wanted_end = message["why"]
            self._deadline = time.monotonic() + message.get("left_s", 0.0)

    def say_where(self, address: str) -> None:
        """Of rank 0 of a gang: where the others find it."""
        self._channel.send({"is": "meets", "at": address})

    def hear_where(self) -> str:
        """Of another rank of a gang: where rank 0 is to be found. Waits until it says so.

        Raises:
            RetryableError: the agent is gone.
        """
        while (message := self._channel.receive()) is not None:
            if message["do"] == "meet":
                return str(message["at"])
            self._heed(message)
        raise RetryableError("the worker's agent is gone")

    @property
    def left_s(self) -> float | None:
        """Seconds until a task whose end is wanted is ended by force; `None` while it may go on."""
        return max(0.0, self._deadline - time.monotonic()) if self._wanted_end else None

    def saved(self, savepoint: Savepoint) -> None:
        """Say that another attempt can go on from here."""
        self._channel.send({"is": "saved", "savepoint": savepoint.model_dump(mode="json")})

    def raise_if_ending(self) -> None:
        """Leave the task if the agent wants its end; called, after `listen`, where more batches or rows are to come.

        A task whose last batch is done is not left: what remains is saving it. Ranks leave at the same batch, which is
        a later one than that at which rank 0 heard of it.

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
        """What all ranks do at this batch boundary. Called by each of them, after `listen`; may be called again.

        Args:
            wanted: of rank 0, which alone decides: announced for a later batch, unless one that was is still to come.
        """
        if self.ranks is not None and self.ranks.address:
            return self._agreed(wanted)
        assert self._page is not None
        if wanted and self._announced < self._batch:
            self._announced = self._page.announce(wanted)
        return self._page.announced(self._batch)

    def _agreed(self, wanted: Action) -> Action:
        """As `together`, of ranks that share no memory: by one collective operation at each boundary."""
        if self._voted is None or self._voted[0] != self._batch:
            assert self.vote is not None
            assert self.ranks is not None
            ending = Action.END if self._wanted_end else Action(0)
            mine = wanted | ending if self.ranks.rank == 0 else Action(0)
            self._voted = self._batch, Action(self.vote(int(mine)))
        return self._voted[1]

    def note_operations(self, number: int) -> None:
        """Of a rank: it has begun so many operations of all ranks together. Safe in any thread."""
        page, ranks = self._page, self.ranks
        if page is not None and ranks is not None:
            with suppress(ValueError):  # the page was closed meanwhile
                page.note(ranks.rank, number)

    def raise_if_ended(self) -> None:
        """Leave the task for good where user code has swallowed the error that `raise_if_ending` raised; called before
        anything is made of what user code returned.

        Raises:
            PreemptedError: the task was left in its middle.
        """
        if self.has_raised:
            raise PreemptedError(self._wanted_end)


class BaseHandler(ABC):
    """Base of the class `Handler` of each handler module, made with a `Context` once in each process for user code.

    Importing the module starts no thread and asks for no device: processes are forked from one that has imported it.

    Attributes:
        keeps_process: True if one process runs all tasks of a user code; False if each task gets a new process.
    """

    keeps_process: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self._context, self._volumes = context, context.volumes

    @staticmethod  # noqa: B027 - most have nothing to prepare
    def before_fork() -> None:
        """Called once in the process that has imported the module; starts no thread either."""

    @abstractmethod
    def handle(self, body: TaskBody, attempt: int) -> TaskResult:
        """Do one task; what it raises becomes a `Failure`."""

    def preload(self, body: TaskBody) -> None:  # noqa: B027
        """A hint that this task comes next; may do nothing."""

    def rest(self) -> None:  # noqa: B027
        """Nothing is to be done for now: let go of all that is large and can be made again. May be called twice."""
