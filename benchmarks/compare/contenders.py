"""The other methods, each as a program: ``python -m benchmarks.compare.contenders METHOD DATA RATES INTO``.

Each trains one model per learning rate for one epoch, measures it on the held-out rows, saves it below INTO, and
prints an `Outcome` as JSON on the last line. The clock runs from the call until the last process has ended. Needs
torch and numpy, `ray-tune` also ``ray[tune]``: it runs in an environment of its own, without Cerebro.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TypedDict


class Outcome(TypedDict):
    """What a method took and reached.

    Attributes:
        seconds: from the call to the result.
        accuracy: on the held-out rows, a model each, in the order of the rates.
        held: bytes of training rows that a worker has in its memory; the most of all workers.
        moved: bytes that went from one process to another, or to a file for another one, to train and to deliver.
    """

    seconds: float
    accuracy: list[float]
    held: int
    moved: int


def _methods() -> dict[str, Callable[[str, list[float], str], Outcome]]:
    from benchmarks.compare import processes, ranks, server, tune

    return {
        "task-parallel": processes.run,
        "ddp": ranks.ddp,
        "ddp-larger-batch": ranks.ddp_larger_batch,
        "averaging": ranks.averaging,
        "parameter-server": server.run,
        "ray-tune": tune.run,
    }


def main() -> None:
    """Run one of the methods."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for all processes
    method, folder, rates, into = sys.argv[1:]
    print(json.dumps(_methods()[method](folder, json.loads(rates), into)))


if __name__ == "__main__":
    main()
