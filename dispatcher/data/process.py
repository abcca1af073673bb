"""Child process that compares the columns of a data set: ``python -P -m dispatcher.data.process``.

`Summaries` starts it. It limits its time and memory, because user code can write to the volume of the files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from cerebro.contract.base import Contract
from cerebro.data.files.safe_open import open_below
from cerebro.errors import DataError
from cerebro.figures.data.summary import DataSummary
from dispatcher.sandbox.bounded_processes import limit_process

MEMORY_BYTES = 1 << 30
"""Limit of the data segment, which counts reserved memory too."""


class Job(Contract):
    """Input of the process: files of each split, and the shared volume."""

    files: dict[str, tuple[str, ...]]
    shared: str
    cpu_s: int


class Outcome(Contract):
    """Output of the process: a summary, or the reason why it failed."""

    summary: DataSummary | None = None
    reason: str = ""


def main() -> None:
    """Answer one `Job` with an `Outcome`."""
    job = Job.model_validate_json(sys.stdin.buffer.read())
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=job.cpu_s)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # the stack of each thread counts as memory
    sys.stdout.write(compute(job).model_dump_json())


def compute(job: Job) -> Outcome:
    """Compute the summary of a job."""
    from cerebro.figures.data.reading import SummaryRequest, read_summary

    shared = Path(job.shared)

    def open_file(name: str) -> BinaryIO | None:
        try:
            return open_below(shared, name)
        except FileNotFoundError:
            return None

    try:
        return Outcome(summary=read_summary(SummaryRequest(files=job.files), open_file))
    except DataError as error:
        return Outcome(reason=str(error))
    except OSError as error:
        return Outcome(reason=f"the shared volume cannot be read: {error}")


if __name__ == "__main__":
    main()
