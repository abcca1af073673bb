"""The other methods as programs: ``python -m benchmarks.compare.contenders METHOD DATA RATES INTO``.

Each trains one model per learning rate for one epoch, evaluates it on the held-out rows, saves it below INTO, and
prints an `Outcome` as JSON on the last line. The time runs from the call to the end of the last process. Needs torch
and numpy; `ray-tune` also needs ``ray[tune]`` and runs in a separate environment without Cerebro.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TypedDict


class Outcome(TypedDict):
    """Cost and accuracy of a method.

    Attributes:
        seconds: from the call to the result.
        accuracy: accuracy of each model on the held-out rows, in the order of the rates.
        held: bytes of training rows in a worker's memory, maximum over the workers.
        moved: bytes passed between processes, directly or through files, for training and delivery.
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
    """Run one method."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, for all processes
    method, folder, rates, into = sys.argv[1:]
    print(json.dumps(_methods()[method](folder, json.loads(rates), into)))


if __name__ == "__main__":
    main()
