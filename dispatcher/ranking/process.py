"""Child process that computes a ranking: ``python -P -m dispatcher.ranking.process``.

`Rankings` starts it. The files come from user code, so time and memory are limited. It keeps NumPy and Arrow out of the
dispatcher's own process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cerebro.contract.base import Contract
from cerebro.data.files.safe_open import open_below
from cerebro.errors import DataError
from cerebro.figures.ranking.results import Ranking, RankingRequest
from dispatcher.sandbox.bounded_processes import limit_process

MEMORY_BYTES = 1 << 30
"""Limit of the data segment, which counts reserved memory too."""


class Job(Contract):
    """Input of the process. `shared`: the shared volume."""

    request: RankingRequest
    shared: str
    cpu_s: int


class Outcome(Contract):
    """Output of the process: a ranking, or the reason why there is none."""

    ranking: Ranking | None = None
    reason: str = ""


def main() -> None:
    """Answer one `Job` with an `Outcome`."""
    job = Job.model_validate_json(sys.stdin.buffer.read())
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=job.cpu_s)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # the stack of each thread counts as memory
    sys.stdout.write(_outcome(job).model_dump_json())


def _outcome(job: Job) -> Outcome:
    from cerebro.figures.ranking.row_values import rank_models

    shared = Path(job.shared)

    def path_of(name: str) -> Path:
        try:
            with open_below(shared, name):  # refuses links that leave the volume
                return shared / name
        except OSError as cause:
            raise DataError(f"{name} cannot be read: {cause}. Test the models again") from cause

    try:
        return Outcome(ranking=rank_models(job.request, path_of))
    except DataError as error:
        return Outcome(reason=str(error))


if __name__ == "__main__":
    main()
