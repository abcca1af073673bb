"""One preprocessing process ("core") and the parent's handle on it.

`etl_worker.cores` starts cores, gives each one shard at a time and kills cores. Parent and core exchange pickles over a
pipe. The core counts its rows in memory that both processes share; the parent sets `LEAVE` there to end the core at its
next row. A core writes shard files in the job's folder and never starts another core.
"""

from __future__ import annotations

import gc
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
from cerebro.runtime.isolation.parent_death import end_with
from cerebro.runtime.isolation.process_exit import no_collection
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.runtime.usage.memory import offer_to_killer
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import Preprocessor, RowsCallback, begin

DONE, FAILED, AT, LEAVE = 0, 1, 2, 3
"""Columns of the shared counts.

They are: rows done, rows failed, position of the current row, and 1 to request the end.
"""
COLUMNS = 4


class _JobRequest(NamedTuple):
    job: EtlJob
    source: Source


class _ShardRequest(NamedTuple):
    part: ShardRange
    is_alone: bool


@dataclass(frozen=True, kw_only=True)
class Core:
    """A core as its parent sees it."""

    number: int
    process: ForkProcess
    pipe: Connection

    def send_job(self, job: EtlJob, source: Source) -> None:
        """Send the job, before the first shard and after each pause.

        Raises:
            OSError: the core has ended.
        """
        self.pipe.send(_JobRequest(job, source))

    def request_shard(self, part: ShardRange, *, is_alone: bool) -> None:
        """Request one shard.

        Args:
            part: rows of the shard.
            is_alone: True if no other core works. A row that runs out of memory then fails for good.
        """
        self.pipe.send(_ShardRequest(part, is_alone))

    def end(self) -> None:
        """Kill the core and wait until it has ended."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start(number: int, counts: NDArray[np.int64], make_spec: SpecFactory) -> Core:
    """Fork a core that counts its rows in `counts[number]`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run, args=(os.getpid(), number, theirs, counts, make_spec), name=f"cerebro-core-{number}"
    )
    with no_collection():
        process.start()
    theirs.close()  # without this, our end never reads an end of file
    return Core(number=number, process=process, pipe=ours)


def _run(
    parent: int,
    number: int,
    pipe: Connection,
    counts: NDArray[np.int64],
    make_spec: SpecFactory,
) -> None:
    gc.freeze()
    gc.enable()
    end_with(parent)
    offer_to_killer()  # the kernel should end a core before the parent, which can continue with fewer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # one thread in each core for the libraries of user code
    preprocessor: Preprocessor | None = None
    try:
        while True:
            request: _JobRequest | _ShardRequest | None = pipe.recv()
            if request is None:
                return
            if isinstance(request, _JobRequest):
                if preprocessor is None:
                    metadata = Metadata(request.job.metadata_path)
                    preprocessor = begin(request.job, metadata, request.source, make_spec, process=number)
                pipe.send(("ready", None))
                continue
            assert preprocessor is not None
            counts[number, AT] = request.part.start
            preprocessor = replace(preprocessor, is_alone=request.is_alone)
            manifest = preprocessor.shard(request.part, _observer(number, pipe, counts))
            _flush()
            pipe.send(("made", manifest))
    except EOFError:
        return
    except BaseException as error:  # noqa: BLE001 - the core's outermost frame: the parent raises it
        _flush()
        with suppress(OSError):
            pipe.send(("error", _sendable(error)))


def _observer(number: int, pipe: Connection, counts: NDArray[np.int64]) -> RowsCallback:
    row_counts = memoryview(counts[number])  # faster than indexing the array

    def on_rows(position: int, count: int, failed: FailedRow | None) -> None:
        if failed is not None:
            if (
                row_counts[FAILED] < NAMED_ROWS
            ):  # sent before it is counted, so that the parent can name counted rows
                pipe.send(("failed", (position, failed)))
            row_counts[FAILED] += 1
        row_counts[DONE] += count
        row_counts[AT] = position + count
        if row_counts[LEAVE]:
            raise PreemptedError

    return on_rows


def _flush() -> None:
    """Flush what user code printed, because the parent may kill the core at any time."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _sendable(error: BaseException) -> BaseException:
    """Return the error with its traceback, or its text if it cannot be pickled."""
    if isinstance(error, CerebroError):
        error.user_traceback = text_of(error)
    else:
        error.add_note(text_of(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - user code's exceptions may raise anything here
        return RetryableError(f"a preprocessing process failed: {line_of(error)}")
    return error
