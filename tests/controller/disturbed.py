"""A cluster as property tests draw it: tasks take different times, workers go away, sub-epochs fail."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from cerebro.contract.tasks import Failure, FailureKind, TaskBody, TrainTask
from research.simulation.scenario import Scenario, WorkerOutage
from tests.controller.test_core import own_partition, several_devices


def disturbed(
    workers: int,
    *,
    outages: Iterable[tuple[int, float, float]],
    faults: Mapping[tuple[int, int], FailureKind],
    times: Random,
    devices: Sequence[int] = (),
) -> Scenario:
    """Workers that hold the partition of their number each.

    Args:
        outages: (worker, start, length), in seconds; those of workers beyond the last one are left out.
        faults: (model, sub-epoch) -> how that sub-epoch's first attempt fails.
        times: draws how long each task takes, 0.5 to 4 s.
        devices: of each worker, one of those it does not tell of.
    """

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        key = (int(getattr(body, "model", "m0")[1:]), getattr(body, "sub_epoch", 0))
        is_hit = isinstance(body, TrainTask) and attempt == 1 and key in faults
        return Failure(kind=faults[key], message="injected") if is_hit else None

    return Scenario(
        replicas=own_partition(workers),
        # Each model has a fixed part of its own, which its workers tell of.
        fixed_s=lambda body, worker: 0.1 * (1 + zlib.crc32(getattr(body, "model", "").encode()) % 4),
        sub_epoch_time=lambda body, worker: times.uniform(0.5, 4.0),
        outcome=outcome,
        devices=several_devices(*devices),
        outages=[WorkerOutage(worker=f"worker-{w}", start=s, length=n) for w, s, n in outages if w < workers],
    )
