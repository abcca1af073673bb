"""One process that makes shards: started by `start`, told what to do over a pipe.

Two columns of the memory that it shares with its parent count what it has done; the parent reads them, and asks it to
leave by a third.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro.data.manifests import NAMED_ROWS, FailedRow, Source
from cerebro.errors import CerebroError, PreemptedError, RetryableError
from cerebro.runtime.parent_death import end_with
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.runtime.usage.memory import offer_to_killer
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, RowsCallback, begin

DONE, FAILED, AT, LEAVE = 0, 1, 2, 3
"""Columns of the shared counts: rows done, rows failed, position of the row at hand; 1 once the core is to leave."""
COLUMNS = 4


class _Call(NamedTuple):
    job: EtlJob
    source: Source


class _Order(NamedTuple):
    part: ShardRange
    is_alone: bool


@dataclass(frozen=True, kw_only=True)
class Core:
    """A core, as its parent sees it."""

    number: int
    process: ForkProcess
    pipe: Connection

    def call(self, job: EtlJob, source: Source) -> None:
        """Give it the job, before its first shard and after each pause.

        Raises:
            OSError: it has ended.
        """
        self.pipe.send(_Call(job, source))

    def order(self, part: ShardRange, *, is_alone: bool) -> None:
        """Have it make a shard.

        Args:
            is_alone: no other core works: a row for which memory does not suffice now never will have enough.
        """
        self.pipe.send(_Order(part, is_alone))

    def end(self) -> None:
        """End it, and wait for that."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start(number: int, counts: NDArray[np.int64], make_spec: SpecFactory) -> Core:
    """Fork one, with a row of the counts."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run, args=(os.getpid(), number, theirs, counts, make_spec), name=f"cerebro-core-{number}"
    )
    process.start()
    theirs.close()  # so that our end reads its end of file when the core ends
    return Core(number=number, process=process, pipe=ours)


def _run(
    parent: int,
    number: int,
    pipe: Connection,
    counts: NDArray[np.int64],
    make_spec: SpecFactory,
) -> None:
    end_with(parent)
    offer_to_killer()  # rather one of several than the process that can go on with fewer
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of a terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(
            name, "1"
        )  # one core each: libraries that user code loads must not start more threads
    preprocessor: Preprocessor | None = None
    try:
        while True:
            told: _Call | _Order | None = pipe.recv()
            if told is None:
                return
            if isinstance(told, _Call):
                if preprocessor is None:
                    metadata = Metadata(told.job.metadata_path)
                    preprocessor = begin(told.job, metadata, told.source, make_spec, process=number)
                pipe.send(("ready", None))
                continue
            assert preprocessor is not None
            counts[number, AT] = told.part.start
            preprocessor = replace(preprocessor, is_alone=told.is_alone)
            made = preprocessor.shard(told.part, _observer(number, pipe, counts))
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
            if mine[FAILED] < NAMED_ROWS:  # told before it is counted: who sees the count can name rows
                pipe.send(("failed", (position, failed)))
            mine[FAILED] += 1
        mine[DONE] += count
        mine[AT] = position + count
        if mine[LEAVE]:
            raise PreemptedError

    return on_rows


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
