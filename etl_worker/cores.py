"""Shards made by several processes, whose number follows memory and processor use.

`partition.preprocess_partition` calls `Cores.make`, in the child process that runs the task. At most `MAX_PER_CORE`
processes run for each core of the worker. With one core, the calling process makes the shards itself.

This is not a process pool. When a core dies, its exit code and current row are known. When a core fails, the others end
at once; when the task is preempted, they end at their next row and clean up. Row counts are in anonymous memory shared
by fork, so nothing remains afterwards.

If the kernel kills a core for lack of memory, half of the cores continue and another core makes the shard. The calling
process must have one thread. With several cores it must hold no open files or shared memory of user code, because cores
are its forks.
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

from cerebro.data.files.durable import discard_leftovers
from cerebro.data.manifests import FailedRow, Source
from cerebro.errors import PreemptedError
from cerebro.runtime.usage.memory import own_group
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, begin
from etl_worker.core import AT, COLUMNS, DONE, FAILED, LEAVE, Core, start
from etl_worker.errors import CoreDiedError, NoMemoryError
from etl_worker.process_count import MAX_PER_CORE, Sizing
from etl_worker.shard_counts import REPORT_S, ShardCounts
from etl_worker.shard_work import discard_shard
from etl_worker.watch import Watch

log = logging.getLogger(__name__)


class Cores:
    """Processes that make the shards of one job. One thread owns them.

    Args:
        make_spec: called once in each process.
        kills: returns the number of processes of this worker that the kernel killed for lack of memory, or `None` where
            it is unknown. Default: the count of the worker's control group.
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
        """Make the shards `parts` and add them to `shard_counts`. Call it once.

        With `job.cores == 1` the calling process does the work. If `shard_counts` raises `PreemptedError`, the cores
        leave their shards at their next row. Call `close` after any error.

        Args:
            on_ready: called once, when the first process has initialised the spec.

        Raises:
            CoreDiedError: a core died.
            NoMemoryError: the kernel killed the only remaining core for lack of memory.
            Exception: any error of `Preprocessor.shard`, the spec or `shard_counts`.
        """
        if job.cores == 1:
            preprocessor = begin(job, metadata, source, self._make_spec, process=0)
            on_ready()
            _make_in_process(parts, preprocessor, shard_counts)
            return
        max_processes = MAX_PER_CORE * job.cores
        shared = mmap.mmap(-1, max_processes * COLUMNS * 8)
        counts = np.frombuffer(shared, np.int64).reshape(max_processes, COLUMNS)
        self._sizing = Sizing(job.cores)
        self._sizing.begin(job.shortages)
        work = _Work(self._running, counts, self._sizing, self._kills, self._make_spec)
        try:
            work.serve(job, source, deque(parts), shard_counts, on_ready)
        except PreemptedError:
            counts[:, LEAVE] = 1
            _wait_for_end(self._running)
            raise

    def close(self) -> None:
        """Kill all processes. Calling it twice is safe."""
        for core in self._running:
            core.process.kill()
        for core in self._running:
            core.end()
        self._running.clear()


class _ShardInProgress(NamedTuple):
    """A shard in progress on a core, and the core's counts before it."""

    part: ShardRange
    counts: NDArray[np.int64]


class _Work:
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
        self._initial_kills, self._explained_kills = kills(), 0
        self._waiting: dict[Connection, Core] = {}
        """Cores from which a message is expected."""
        self._shards_in_progress: dict[int, _ShardInProgress] = {}
        """Core number -> its shard in progress."""
        self._reductions = 0
        self._began: dict[int, int] = {}
        """Core number -> number of reductions when the core last began."""
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
        """Make all shards of `todo`."""
        self._job, self._source, self._todo, self._shard_counts = job, source, todo, shard_counts
        self._metadata = Metadata(job.metadata_path)
        while self._todo or self._waiting:
            self._start_cores()
            for pipe in wait(list(self._waiting), timeout=REPORT_S):
                core = self._waiting.get(pipe)  # type: ignore[call-overload]  # only pipes are waited for
                if core is not None:  # an earlier message of this loop may have ended it
                    self._receive(core, on_ready)
            for core in list(self._waiting.values()):
                # The pipe has no end of file while a process that the core forked is alive, so check the exit code too.
                if core.pipe in self._waiting and core.process.exitcode is not None and not core.pipe.poll():
                    self._on_death(core)
            done, failed = int(self._counts[:, DONE].sum()), int(self._counts[:, FAILED].sum())
            shard_counts.update(done, failed)
            self._resize(done)

    def _start_cores(self) -> None:
        busy = {core.number for core in self._waiting.values()}
        idle = [core for core in self._running if core.number not in busy]
        # Cores without a shard yet will take one from `todo`, so they count as busy.
        while len(self._waiting) < min(self._sizing.number, len(self._todo) + len(self._shards_in_progress)):
            idle = [core for core in idle if core in self._running]
            if idle:
                core = idle.pop(0)
            else:
                used_numbers = {each.number for each in self._running}
                number = min(set(range(len(self._counts))) - used_numbers)
                self._counts[number, AT] = -1
                core = start(number, self._counts, self._make_spec)
                self._running.append(core)
            self._began[core.number] = self._reductions
            try:
                core.send_job(self._job, self._source)
            except OSError:
                self._on_death(core)
                continue
            self._waiting[core.pipe] = core
            self._watch.stop()

    def _receive(self, core: Core, on_ready: Callable[[], None]) -> None:
        try:
            kind, content = core.pipe.recv()
        except (EOFError, OSError):
            self._on_death(core)
            return
        if kind == "failed":
            self._shard_counts.add_failure(*content)
            return
        if kind == "error":
            if not isinstance(content, MemoryError) or not self._continue_with_fewer(core):
                raise content
            return
        if kind == "made":
            self._shards_in_progress.pop(core.number, None)
            self._shard_counts.add(content)
        else:
            on_ready()
            self._watch.begin(self._pids(), int(self._counts[:, DONE].sum()))
        if self._todo and len(self._waiting) <= self._sizing.number:
            part = self._todo.popleft()
            self._shards_in_progress[core.number] = _ShardInProgress(part, self._counts[core.number].copy())
            self._began[core.number] = self._reductions
            core.request_shard(part, is_alone=self._sizing.number == 1)
        else:
            del self._waiting[core.pipe]  # idle until more work comes

    def _on_death(self, core: Core) -> None:
        """Handle a core that died.

        Raises:
            CoreDiedError, NoMemoryError: the job cannot continue.
        """
        core.process.join()
        code, now = core.process.exitcode or 0, self._kills()
        is_memory_kill = code == -signal.SIGKILL and (
            now is None or now - (self._initial_kills or 0) > self._explained_kills
        )
        if not is_memory_kill:
            raise self._death_error(core, code)
        self._explained_kills += 1
        if self._continue_with_fewer(core):
            return
        if now is None:
            raise self._death_error(core, code)
        raise NoMemoryError(
            f"preprocessing ran out of memory {self._where(core)}, with a single process. Reduce what this row needs, "
            "or raise the worker's memory limit."
        )

    def _continue_with_fewer(self, core: Core) -> bool:
        """Continue with fewer cores after one ran out of memory; return False if it was the only one.

        The surplus cores end at once, because they hold the memory that is short.
        """
        if self._began[core.number] < self._reductions:
            # It began when more cores shared the memory.
            self._drop(core)
            return True
        if not self._sizing.ran_out():
            return False
        self._reductions += 1
        log.warning(
            "memory ran out: preprocessing continues with %d process%s",
            self._sizing.number,
            "es" if self._sizing.number > 1 else "",
        )
        self._drop(core)
        surplus = len(self._running) - self._sizing.number
        idle = [each for each in self._running if each.pipe not in self._waiting]
        for each in (idle + list(self._waiting.values())[::-1])[: max(0, surplus)]:
            self._drop(each)
        self._watch.stop()
        return True

    def _drop(self, core: Core) -> None:
        core.end()
        self._running.remove(core)
        self._waiting.pop(core.pipe, None)
        shard_in_progress = self._shards_in_progress.pop(core.number, None)
        if shard_in_progress is not None:
            # Another core makes its rows again and counts them.
            self._counts[core.number] = shard_in_progress.counts
            self._todo.appendleft(shard_in_progress.part)
            self._shard_counts.forget(shard_in_progress.part)
            discard_leftovers(self._job.output_folder, by=core.process.pid)
            discard_shard(self._job.output_folder, shard_in_progress.part.index)

    def _resize(self, done: int) -> None:
        window = self._watch.measure(self._pids(), done)
        if window is None or not self._todo:
            return
        previous_number = self._sizing.number
        self._sizing.add(window)
        if self._sizing.number != previous_number:
            log.info(
                "preprocessing continues with %d processes, not %d: %.3g rows/s, each computes for %.0f %% of its time",
                self._sizing.number,
                previous_number,
                window.rate,
                100 * window.busy,
            )
        self._watch.begin(self._pids(), done)

    def _pids(self) -> list[int]:
        return sorted(core.process.pid or 0 for core in self._waiting.values())

    def _death_error(self, core: Core, code: int) -> CoreDiedError:
        reason = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return CoreDiedError(
            f"preprocessing process {core.number} died with {reason} {self._where(core)}. "
            "Check the row function at this row and the memory of the worker."
        )

    def _where(self, core: Core) -> str:
        at = int(self._counts[core.number, AT])
        if at < 0:
            return "before its first row"
        if at >= self._metadata.num_rows:
            return "after its last row"
        (row,) = self._metadata.batch(at, at + 1)["id"].to_pylist()
        return f"at row {at} of the partition (counted from 0), whose id is {row!r}"


def _make_in_process(
    parts: Sequence[ShardRange], preprocessor: Preprocessor, shard_counts: ShardCounts
) -> None:
    done = failures = 0

    def on_rows(position: int, count: int, failed: FailedRow | None) -> None:
        nonlocal done, failures
        done += count
        if failed is not None:
            failures += 1
            shard_counts.add_failure(position, failed)
        shard_counts.update(done, failures)

    for part in parts:
        shard_counts.add(preprocessor.shard(part, on_rows))


def _wait_for_end(cores: Sequence[Core]) -> None:
    """Wait until the cores end; a killed core would leave part of a shard file."""
    for core in cores:
        with suppress(OSError):
            core.pipe.send(None)  # ends cores that wait for a shard
    running: dict[Any, Core] = {core.process.sentinel: core for core in cores}
    while running:
        pipes: dict[Any, Connection] = {core.pipe: core.pipe for core in running.values()}
        for ready in wait([*running, *pipes]):
            running.pop(ready, None)
            if ready in pipes:
                # Read the pipe, or a full pipe would block the core. Its end of file comes when the core ends.
                with suppress(EOFError, OSError):
                    pipes[ready].recv()
