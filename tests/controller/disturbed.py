"""Clusters for property tests: random task times, worker outages and failures."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
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
    """Return a scenario whose workers hold the partition with their number.

    Args:
        outages: (worker, start, length) in seconds. Outages of workers beyond the last one are ignored.
        faults: Maps (model, sub-epoch) to the failure of its first attempt.
        times: Source of random task durations from 0.5 to 4 s.
        devices: Devices of worker-0, worker-1 and so on. Workers beyond the sequence have one device.
    """

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        key = (int(getattr(body, "model", "m0")[1:]), getattr(body, "sub_epoch", 0))
        is_hit = isinstance(body, TrainTask) and attempt == 1 and key in faults
        return Failure(kind=faults[key], message="injected") if is_hit else None

    return Scenario(
        replicas=own_partition(workers),
        # Each model has its own fixed time, which workers report.
        fixed_s=lambda body, worker: 0.1 * (1 + zlib.crc32(getattr(body, "model", "").encode()) % 4),
        sub_epoch_time=lambda body, worker: times.uniform(0.5, 4.0),
        outcome=outcome,
        devices=several_devices(*devices),
        outages=[WorkerOutage(worker=f"worker-{w}", start=s, length=n) for w, s, n in outages if w < workers],
    )
