"""Child process that computes a ranking or selects rows: ``python -P -m dispatcher.ranking.process``.

`Rankings` starts it. It limits its time and memory, because user code wrote the files. NumPy and Arrow are loaded here
only, not by the page's process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from cerebro.data.files.safe_open import ABSENT, open_below
from cerebro.errors import DataError
from cerebro.figures.ranking.results import RankingRequest
from dispatcher.ranking.outcomes import Job, Outcome
from dispatcher.sandbox.bounded_processes import limit_process

MEMORY_BYTES = 1 << 30
"""Limit of the data segment, which counts reserved memory too."""


def main() -> None:
    """Answer one `Job` with an `Outcome`."""
    job = Job.model_validate_json(sys.stdin.buffer.read())
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=job.cpu_s)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # the stack of each thread counts as memory
    sys.stdout.write(compute(job).model_dump_json())


def compute(job: Job) -> Outcome:
    """Compute the outcome of a job."""
    shared = Path(job.shared)

    def open_file(name: str) -> BinaryIO:
        try:
            return open_below(shared, name)
        except OSError as cause:
            if cause.errno not in ABSENT or not shared.is_dir():
                raise
            raise DataError(f"{name} cannot be read: {cause}. Test the models again") from cause

    try:
        if isinstance(job.request, RankingRequest):
            from cerebro.figures.ranking.models import rank_models

            return Outcome(ranking=rank_models(job.request, open_file))
        from cerebro.figures.ranking.row_tables import compare_rows
        from dispatcher.rows.fields import describe

        found = compare_rows(job.request, open_file)
        if job.request.source is None:
            return Outcome(rows=found)
        described = describe(
            found,
            job.request.source,
            lambda name: open_below(shared, name),
            objects_below=None if job.is_local else shared,
        )
        return Outcome(
            rows=described.rows, thumbnails=described.thumbnails, is_temporary=not described.is_complete
        )
    except DataError as error:
        return Outcome(reason=str(error))
    except OSError as error:
        return Outcome(reason=f"the shared volume cannot be read: {error}", is_temporary=True)


if __name__ == "__main__":
    main()
