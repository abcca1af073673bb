"""Recommended memory and CPU requests of workers, from their measured usage. Pure functions.

`cerebro recommend` reads the usage and prints the result; nothing applies it. The rules follow vertical autoscalers:
the request covers nearly all attempts, the limit covers all attempts, each with a margin (ELASTIC design, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from cerebro.contract.records import UsageSample, WorkerRecord

Role = Literal["worker", "etl"]
"""Container of a worker pod: ``worker`` trains, ``etl`` only preprocesses."""

MIN_SAMPLES = 20
"""Minimum number of measured sub-epochs or busy samples for a recommendation."""
_BUSY_CORES = 0.1
"""Workers that use fewer cores count as idle."""
_REQUEST_FACTOR, _LIMIT_FACTOR, _CORES_FACTOR = 1.15, 1.3, 1.1
"""Margins: request above the usual memory, limit above the peak, cores above the usual cores."""
_MEMORY_QUANTILE, _CORES_QUANTILE = 0.95, 0.9
_STEP_BYTES, _STEP_CORES = 256 << 20, 0.5
_TOLERANCE = 0.2
"""Relative difference that counts as no change."""


@dataclass(frozen=True, kw_only=True)
class ContainerUsage:
    """Measured usage of one container.

    Attributes:
        record: record of its worker.
        samples: samples of the last day, one per 30 s.
    """

    record: WorkerRecord
    samples: Sequence[UsageSample]

    @property
    def role(self) -> Role:
        """Role of the container."""
        return "worker" if "train" in self.record.kinds else "etl"


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Recommended resources for the containers of one role.

    Attributes:
        role: role of the containers.
        request_bytes, limit_bytes: memory.
        cores: requested cores, a multiple of 0.5; `None` if not measured.
        peak_bytes: maximum memory that a container used.
        current_limit: smallest current memory limit; `None` without one.
        current_cores: largest current number of cores.
        samples, attempts: number of busy samples and of measured sub-epochs.
    """

    role: Role
    request_bytes: int
    limit_bytes: int
    cores: float | None
    peak_bytes: int
    current_limit: int | None
    current_cores: int
    samples: int
    attempts: int

    @property
    def is_near(self) -> bool:
        """True if current and recommended values differ little."""
        memory = self.current_limit is not None and _is_near(self.limit_bytes, self.current_limit)
        return memory and (self.cores is None or _is_near(self.cores, self.current_cores))


def recommend(usages: Iterable[ContainerUsage], peaks: Sequence[int]) -> dict[Role, Recommendation | None]:
    """Recommend resources for each role; `None` without enough measurements.

    Args:
        usages: current containers.
        peaks: peak memory of sub-epoch processes, in bytes.
    """
    by_role: dict[Role, list[ContainerUsage]] = {}
    for usage in usages:
        by_role.setdefault(usage.role, []).append(usage)
    return {
        role: _recommendation(role, containers, peaks if role == "worker" else ())
        for role, containers in sorted(by_role.items())
    }


def _recommendation(
    role: Role, containers: Sequence[ContainerUsage], peaks: Sequence[int]
) -> Recommendation | None:
    usages = [sample.usage for each in containers for sample in each.samples]
    busy = [u for u in usages if u.cores_used is not None and u.cores_used >= _BUSY_CORES]
    memory = sorted(u.memory_bytes for u in busy if u.memory_bytes is not None)
    # The agent needs memory in addition to sub-epochs: the usage of an idle worker.
    idle = min((u.memory_bytes for u in usages if u.memory_bytes is not None), default=0)
    num_parallel = max((max(1, len(each.record.devices)) for each in containers), default=1)
    sub_epochs = sorted(idle + num_parallel * sub_epoch_peak for sub_epoch_peak in peaks)
    if max(len(memory), len(sub_epochs)) < MIN_SAMPLES:
        return None
    # Samples, one per 30 s, miss short peaks. Peaks of sub-epochs miss other processes. Use the larger value.
    usual = max(_quantile(values, _MEMORY_QUANTILE) for values in (memory, sub_epochs) if values)
    peak = max(values[-1] for values in (memory, sub_epochs) if values)
    cores = sorted(u.cores_used for u in busy if u.cores_used is not None)
    request = _steps(_REQUEST_FACTOR * usual, _STEP_BYTES)
    limits = [u.memory_limit_bytes for u in usages if u.memory_limit_bytes is not None]
    return Recommendation(
        role=role,
        request_bytes=int(request),
        limit_bytes=int(max(_steps(_LIMIT_FACTOR * peak, _STEP_BYTES), request)),
        cores=_steps(_CORES_FACTOR * _quantile(cores, _CORES_QUANTILE), _STEP_CORES) if cores else None,
        peak_bytes=int(peak),
        current_limit=min(limits, default=None),
        current_cores=max(each.record.cores for each in containers),
        samples=len(busy),
        attempts=len(sub_epochs),
    )


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of values does not exceed."""
    return ascending[math.ceil(share * len(ascending)) - 1]


def _steps(value: float, step: float) -> float:
    return max(1, math.ceil(value / step)) * step


def _is_near(value: float, current: float) -> bool:
    return abs(value - current) <= _TOLERANCE * current
