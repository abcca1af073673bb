"""Shards made by several processes, as many of them as memory bears and as is of use.

Processes of our own and pipes, not a process pool: when a core dies its exit code and the row it was at are
known, when one fails the others end at once, when the job is to be left they end at their next row and clear up, and
the calling process gets no threads. Each core asks for its
next shard when it has finished one. Counts go through memory shared by fork (anonymous: nothing is left
behind, however the processes end).

After the kernel has ended a core for lack of memory, half as many continue, and another core makes its shard again. The
caller must have one thread and, with more than one core, no open files or shared memory of user code: cores are its
forks.
"""

from __future__ import annotations

import logging
import mmap
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro.data.durable import discard_leftovers
from cerebro.data.manifests import FailedRow, Source
from cerebro.errors import PreemptedError
from cerebro.runtime.usage.memory import own_group
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, begin
from etl_worker.core import AT, COLUMNS, DONE, FAILED, LEAVE, Core, start
from etl_worker.errors import CoreDiedError, NoMemoryError
from etl_worker.shard_counts import REPORT_S, ShardCounts
from etl_worker.shard_work import discard_shard
from etl_worker.sizing import MOST_PER_CORE, Sizing
from etl_worker.watch import Watch

log = logging.getLogger(__name__)


class Cores:
    """Processes that make the shards of one job. Owned by one thread.

    Args:
        make_spec: called once in each process.
        kills: how many processes of this worker the kernel has ended for lack of memory; `None`: nobody counts.
    """

    def __init__(self, make_spec: SpecFactory, kills: Callable[[], int | None] | None = None) -> None:
        self._make_spec, self._kills = make_spec, kills or own_group().kills
        self._running: list[Core] = []

    def make(
        self,
        job: EtlJob,
        metadata: Metadata,
        source: Source,
        parts: Sequence[ShardRange],
        shard_counts: ShardCounts,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        """Make ``parts`` of ``job``, and add them to ``shard_counts``. Call it once.

        With one core the calling process does the work itself. A `PreemptedError` of ``shard_counts`` is handed on to
        the cores, which leave their shards at their next row. When this raises, close them.

        Args:
            on_ready: called once the first process has the spec: the rows come now.

        Raises:
            CoreDiedError: a core ended by itself.
            NoMemoryError: one alone was ended for lack of memory.
            Whatever `Preprocessor.shard`, the spec or ``shard_counts`` raise.
        """
        if job.cores == 1:
            preprocessor = begin(job, metadata, source, self._make_spec, process=0)
            on_ready()
            _make_here(parts, preprocessor, shard_counts)
            return
        most = MOST_PER_CORE * job.cores
        shared = mmap.mmap(-1, most * COLUMNS * 8)  # by all forks
        counts = np.frombuffer(shared, np.int64).reshape(most, COLUMNS)
        self._sizing = Sizing(job.cores)
        self._sizing.begin(job.shortages)
        work = _Work(self._running, counts, self._sizing, self._kills, self._make_spec)
        try:
            work.serve(job, source, deque(parts), shard_counts, on_ready)
        except PreemptedError:
            counts[:, LEAVE] = 1
            _let_leave(self._running)
            raise

    def close(self) -> None:
        """End all processes. Calling twice is safe."""
        for core in self._running:
            core.process.kill()
        for core in self._running:
            core.end()
        self._running.clear()


class _Making(NamedTuple):
    """A shard at a core, and its counts before that."""

    part: ShardRange
    counts: NDArray[np.int64]


class _Work:
    """One job of the cores."""

    def __init__(
        self,
        running: list[Core],
        counts: NDArray[np.int64],
        sizing: Sizing,
        kills: Callable[[], int | None],
        make_spec: SpecFactory,
    ) -> None:
        self._running, self._counts, self._sizing = running, counts, sizing
        self._kills, self._make_spec = kills, make_spec
        self._kills_before, self._explained = kills(), 0
        self._waiting: dict[Connection, Core] = {}
        """Those whose next word is awaited."""
        self._making: dict[int, _Making] = {}
        """By number of the core."""
        self._reductions = 0
        self._began: dict[int, int] = {}
        """Number of a core -> how often their number was reduced before its newest beginning."""
        self._todo: deque[ShardRange] = deque()
        self._watch = Watch()

    def serve(
        self,
        job: EtlJob,
        source: Source,
        todo: deque[ShardRange],
        shard_counts: ShardCounts,
        on_ready: Callable[[], None],
    ) -> None:
        """Have all of ``todo`` made."""
        self._job, self._source, self._todo, self._shard_counts = job, source, todo, shard_counts
        self._metadata = Metadata(job.metadata_path)
        while self._todo or self._waiting:
            self._call_more()
            for pipe in wait(list(self._waiting), timeout=REPORT_S):
                core = self._waiting.get(pipe)  # type: ignore[call-overload]  # only pipes are waited for
                if core is not None:  # it may have been ended for another one's sake
                    self._heed(core, on_ready)
            for core in list(self._waiting.values()):
                # Beside the pipe's end of file, which does not come while a process that the core forked lives
                # on.
                if core.pipe in self._waiting and core.process.exitcode is not None and not core.pipe.poll():
                    self._lost(core)
            done, failed = int(self._counts[:, DONE].sum()), int(self._counts[:, FAILED].sum())
            shard_counts.update(done, failed)
            self._resize(done)

    def _call_more(self) -> None:
        """Have as many at work as there should be, as far as there is work for them."""
        busy = {core.number for core in self._waiting.values()}
        idle = [core for core in self._running if core.number not in busy]
        # Those that were called and have no shard yet will take one of those that are to be made.
        while len(self._waiting) < min(self._sizing.number, len(self._todo) + len(self._making)):
            idle = [core for core in idle if core in self._running]
            if idle:
                core = idle.pop(0)
            else:
                taken = {each.number for each in self._running}
                place = min(set(range(len(self._counts))) - taken)
                self._counts[place, AT] = -1
                core = start(place, self._counts, self._make_spec)
                self._running.append(core)
            self._began[core.number] = self._reductions
            try:
                core.call(self._job, self._source)
            except OSError:
                self._lost(core)
                continue
            self._waiting[core.pipe] = core
            self._watch.stop()

    def _heed(self, core: Core, on_ready: Callable[[], None]) -> None:
        try:
            kind, content = core.pipe.recv()
        except (EOFError, OSError):
            self._lost(core)
            return
        if kind == "failed":
            self._shard_counts.saw_failure(*content)
            return
        if kind == "error":
            if not isinstance(content, MemoryError) or not self._goes_on_without(core):
                raise content
            return
        if kind == "made":
            self._making.pop(core.number, None)
            self._shard_counts.add(content)
        else:
            on_ready()
            self._watch.begin(self._pids(), int(self._counts[:, DONE].sum()))
        if self._todo and len(self._waiting) <= self._sizing.number:
            part = self._todo.popleft()
            self._making[core.number] = _Making(part, self._counts[core.number].copy())
            self._began[core.number] = self._reductions
            core.order(part, is_alone=self._sizing.number == 1)
        else:
            del self._waiting[core.pipe]  # until more work comes, or it is ended

    def _lost(self, core: Core) -> None:
        """A core has ended by itself.

        Raises:
            CoreDiedError, NoMemoryError: the job cannot go on.
        """
        core.process.join()
        code, now = core.process.exitcode or 0, self._kills()
        is_of_memory = code == -signal.SIGKILL and (
            now is None or now - (self._kills_before or 0) > self._explained
        )
        if not is_of_memory:
            raise self._died(core, code)
        self._explained += 1
        if self._goes_on_without(core):
            return
        if now is None:
            raise self._died(core, code)
        raise NoMemoryError(
            f"preprocessing ran out of memory {self._where(core)}, with one process alone: look at what that row "
            "needs, make batches smaller, or raise the memory limit of what preprocesses"
        )

    def _goes_on_without(self, core: Core) -> bool:
        """For one there was no memory. As many others end at once as are too many: what is short is what they hold."""
        if self._began[core.number] < self._reductions:
            # It began beside more than there are now.
            self._drop(core)
            return True
        if not self._sizing.ran_out():
            return False
        self._reductions += 1
        log.warning(
            "memory ran out: preprocessing goes on with %d process%s",
            self._sizing.number,
            "es" if self._sizing.number > 1 else "",
        )
        self._drop(core)
        surplus = len(self._running) - self._sizing.number
        resting = [each for each in self._running if each.pipe not in self._waiting]
        for each in (resting + list(self._waiting.values())[::-1])[: max(0, surplus)]:
            self._drop(each)
        self._watch.stop()
        return True

    def _drop(self, core: Core) -> None:
        core.end()
        self._running.remove(core)
        self._waiting.pop(core.pipe, None)
        making = self._making.pop(core.number, None)
        if making is not None:
            # Its rows are made again, and are counted then.
            self._counts[core.number] = making.counts
            self._todo.appendleft(making.part)
            self._shard_counts.forget(making.part)
            discard_leftovers(self._job.output_folder, by=core.process.pid)
            discard_shard(self._job.output_folder, making.part.index)

    def _resize(self, done: int) -> None:
        window = self._watch.look(self._pids(), done)
        if window is None or not self._todo:
            return
        before = self._sizing.number
        self._sizing.see(window)
        if self._sizing.number != before:
            log.info(
                "preprocessing goes on with %d processes, not %d: %.3g rows/s, each computes for %.0f %% of its time",
                self._sizing.number,
                before,
                window.rate,
                100 * window.busy,
            )
        self._watch.begin(self._pids(), done)

    def _pids(self) -> list[int]:
        return sorted(core.process.pid or 0 for core in self._waiting.values())

    def _died(self, core: Core, code: int) -> CoreDiedError:
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return CoreDiedError(
            f"preprocessing process {core.number} ended by itself with {how} {self._where(core)}: "
            "look for what the preprocessor does there, or whether memory ran out"
        )

    def _where(self, core: Core) -> str:
        at = int(self._counts[core.number, AT])
        if at < 0:
            return "before its first row"
        if at >= self._metadata.num_rows:
            return "after its last row"
        (row,) = self._metadata.batch(at, at + 1)["id"].to_pylist()
        return f"at row {at} of the partition (counted from 0), whose id is {row!r}"


def _make_here(parts: Sequence[ShardRange], preprocessor: Preprocessor, shard_counts: ShardCounts) -> None:
    done = failures = 0

    def on_rows(position: int, count: int, failed: FailedRow | None) -> None:
        nonlocal done, failures
        done += count
        if failed is not None:
            failures += 1
            shard_counts.saw_failure(position, failed)
        shard_counts.update(done, failures)

    for part in parts:
        shard_counts.add(preprocessor.shard(part, on_rows))


def _let_leave(cores: Sequence[Core]) -> None:
    """Wait for the cores to end by themselves: a killed one would leave half a shard's file."""
    for core in cores:
        with suppress(OSError):
            core.pipe.send(None)  # for those who wait for their next shard
    left: dict[Any, Core] = {core.process.sentinel: core for core in cores}
    while left:
        pipes: dict[Any, Connection] = {core.pipe: core.pipe for core in left.values()}
        for ready in wait([*left, *pipes]):
            left.pop(ready, None)
            if ready in pipes:
                # Read, so that nobody is held up by a full pipe; its end of file comes with the core's own end.
                with suppress(EOFError, OSError):
                    pipes[ready].recv()
