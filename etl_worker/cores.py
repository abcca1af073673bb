"""Shards made by several processes.

Processes of our own and pipes, not a process pool: when a core dies its exit code and the row it was at are
known, when one fails the others end at once, when the job is to be left they end at their next row and clear up, and
the calling process gets no threads. Each core asks for its
next shard when it has finished one. Counts go through memory shared by fork (anonymous: nothing is left
behind, however the processes end).

Cores outlive a job that went well, because what they have imported may have taken longer than the job. The caller must
be single-threaded and, with more than one core, must not have run user code: cores are forked from it.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro.data.manifests import NAMED_ROWS, FailedRow, Source
from cerebro.errors import CerebroError, PreemptedError, RetryableError
from cerebro.runtime.parent_death import end_with
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Bench, Preprocessor, RowsCallback
from etl_worker.errors import CoreDiedError
from etl_worker.shard_counts import REPORT_S, ShardCounts

_DONE, _FAILED, _AT, _LEAVE = 0, 1, 2, 3
"""Columns of the shared counts: rows done, rows failed, position of the row at hand; 1 once the core is to leave."""
_STREAMS = (1, 2)
"""Standard output and standard error."""


@dataclass(frozen=True, kw_only=True)
class _Core:
    number: int
    process: ForkProcess
    pipe: Connection


class Cores:
    """Processes that make shards with one spec; those that have done a job wait for the next one. Owned by one thread.

    Args:
        make_spec: called once in each process.
    """

    def __init__(self, make_spec: SpecFactory) -> None:
        self._make_spec = make_spec
        self._bench = Bench(make_spec)
        self._running: list[_Core] = []
        self._counts = np.zeros((0, 4), np.int64)

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
        """Make ``parts`` of ``job`` with as many processes as it may use, and add them to ``shard_counts``.

        With one core the calling process does the work itself. A `PreemptedError` of ``shard_counts`` is handed on to
        the cores, which leave their shards at their next row. When this raises, close them.

        Args:
            on_ready: called once the first process has restored the spec: the rows come now.

        Raises:
            CoreDiedError: a core ended by itself.
            Whatever `Preprocessor.shard`, the spec or ``shard_counts`` raise.
        """
        if job.cores == 1:
            preprocessor = self._bench.preprocessor(job, metadata, source, process=0)
            on_ready()
            _make_here(parts, preprocessor, shard_counts)
            return
        try:
            called = self._call(job, source, min(job.cores, len(parts)))
            _serve(called, deque(parts), self._counts, shard_counts, on_ready)
        except PreemptedError:
            self._counts[:, _LEAVE] = 1
            _let_leave(self._running)
            raise

    def close(self) -> None:
        """End all processes. Calling twice is safe."""
        for core in self._running:
            core.process.kill()
        for core in self._running:
            core.process.join()
            core.pipe.close()
        self._running = []

    def _call(self, job: EtlJob, source: Source, number: int) -> list[_Core]:
        """Tell so many processes of the job; start those that are not there."""
        is_whole = all(core.process.exitcode is None for core in self._running)
        if len(self._counts) != job.cores or not is_whole:
            self.close()
            # Shared by fork.
            self._counts = np.frombuffer(mmap.mmap(-1, job.cores * 4 * 8), np.int64).reshape(job.cores, 4)
        self._counts[:] = 0
        self._counts[:, _AT] = -1
        while len(self._running) < number:
            self._running.append(_start(len(self._running), self._counts, self._make_spec))
        called = self._running[:number]
        for core in called:
            try:
                core.pipe.send((job, source))
                for stream in _STREAMS:
                    # Where this process writes now: the log of this attempt, not of the one the core was forked for.
                    send_handle(core.pipe, stream, core.process.pid)
            except OSError:
                raise _exit_reason(core, self._counts) from None
        return called


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


def _serve(
    cores: Sequence[_Core],
    todo: deque[ShardRange],
    counts: NDArray[np.int64],
    shard_counts: ShardCounts,
    on_ready: Callable[[], None],
) -> None:
    waiting: dict[Any, _Core] = {core.pipe: core for core in cores}
    while waiting:
        for pipe in wait(list(waiting), timeout=REPORT_S):
            core = waiting[pipe]
            kind, content = _receive(core, counts)
            if kind == "failed":
                shard_counts.saw_failure(*content)
                continue
            if kind == "error":
                raise content
            if kind == "made":
                shard_counts.add(content)
            else:
                on_ready()
            if todo:
                core.pipe.send(todo.popleft())
            else:
                del waiting[pipe]  # it waits for the next job, or to be ended
        for core in waiting.values():
            # Beside the pipe's end of file, which does not come while a process that the core forked lives
            # on.
            if core.process.exitcode is not None and not core.pipe.poll():
                raise _exit_reason(core, counts)
        shard_counts.update(int(counts[:, _DONE].sum()), int(counts[:, _FAILED].sum()))


def _let_leave(cores: Sequence[_Core]) -> None:
    """Wait for the cores to end by themselves: a killed one would leave half a shard's file."""
    for core in cores:
        with suppress(OSError):
            core.pipe.send(None)  # for those who wait for their next shard
    left: dict[Any, _Core] = {core.process.sentinel: core for core in cores}
    while left:
        pipes: dict[Any, Connection] = {core.pipe: core.pipe for core in left.values()}
        for ready in wait([*left, *pipes]):
            left.pop(ready, None)
            if ready in pipes:
                # Read, so that nobody is held up by a full pipe; its end of file comes with the core's own end.
                with suppress(EOFError, OSError):
                    pipes[ready].recv()


def _receive(core: _Core, counts: NDArray[np.int64]) -> tuple[str, Any]:
    try:
        kind, content = core.pipe.recv()
    except (EOFError, OSError):
        raise _exit_reason(core, counts) from None
    return kind, content


def _exit_reason(core: _Core, counts: NDArray[np.int64]) -> CoreDiedError:
    core.process.join()
    code = core.process.exitcode or 0
    how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    at = int(counts[core.number, _AT])
    where = "before its first row" if at < 0 else f"at row {at} of the partition (counted from 0)"
    return CoreDiedError(
        f"preprocessing process {core.number} ended by itself with {how} {where}: "
        "look for what the preprocessor does there, or whether memory ran out"
    )


def _start(number: int, counts: NDArray[np.int64], make_spec: SpecFactory) -> _Core:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_core, args=(os.getpid(), number, theirs, counts, make_spec), name=f"cerebro-core-{number}"
    )
    process.start()
    theirs.close()  # so that our end reads its end of file when the core ends
    return _Core(number=number, process=process, pipe=ours)


# --- in the core
# ---------------------------------------------------------------------------------------------------


def _core(
    parent: int,
    number: int,
    pipe: Connection,
    counts: NDArray[np.int64],
    make_spec: SpecFactory,
) -> None:
    end_with(parent)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of a terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(
            name, "1"
        )  # one core each: libraries that user code loads must not start more threads
    bench = Bench(make_spec)
    preprocessor: Preprocessor | None = None
    try:
        while True:
            told: tuple[EtlJob, Source] | ShardRange | None = pipe.recv()
            if told is None:
                return
            if isinstance(told, tuple):
                _redirect(pipe)
                job, source = told
                metadata = Metadata(job.metadata_path)
                preprocessor = bench.preprocessor(job, metadata, source, process=number)
                pipe.send(("ready", None))
                continue
            assert preprocessor is not None
            counts[number, _AT] = told.start
            made = preprocessor.shard(told, _observer(number, pipe, counts))
            _flush()
            pipe.send(("made", made))
    except EOFError:
        return
    except BaseException as error:  # noqa: BLE001 - the core's outermost frame: the parent raises it
        _flush()
        with suppress(OSError):
            pipe.send(("error", _sendable(error)))


def _observer(number: int, pipe: Connection, counts: NDArray[np.int64]) -> RowsCallback:
    mine = memoryview(counts[number])  # several times as fast as the array itself

    def on_rows(position: int, count: int, failed: FailedRow | None) -> None:
        if failed is not None:
            if mine[_FAILED] < NAMED_ROWS:  # told before it is counted: who sees the count can name rows
                pipe.send(("failed", (position, failed)))
            mine[_FAILED] += 1
        mine[_DONE] += count
        mine[_AT] = position + count
        if mine[_LEAVE]:
            raise PreemptedError

    return on_rows


def _redirect(pipe: Connection) -> None:
    """Write where the caller does."""
    _flush()
    for stream in _STREAMS:
        target = recv_handle(pipe)
        os.dup2(target, stream)
        if target not in _STREAMS:  # user code may have closed one, so that its number was free
            os.close(target)


def _flush() -> None:
    """Hand on what user code printed: the core is killed when there is nothing left to do."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _sendable(error: BaseException) -> BaseException:
    """``error``, or its text where it cannot be pickled; with its traceback, which pickling drops."""
    if isinstance(error, CerebroError):
        error.user_traceback = text_of(error)
    else:
        error.add_note(text_of(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - user code's exceptions may raise anything here
        return RetryableError(f"a preprocessing process failed: {line_of(error)}")
    return error
