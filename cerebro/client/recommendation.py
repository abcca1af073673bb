"""What workers should request of memory and processors, by what they have used. Pure.

The rules are those of vertical autoscalers: a request that nearly all attempts keep to, and a limit that none has met,
with room (ELASTIC design, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from cerebro.contract.records import UsageSample, WorkerRecord

Role = Literal["worker", "etl"]
"""Container of a worker's pod: the one that trains, or the one that only preprocesses."""

LEAST_ATTEMPTS = 20
"""Sub-epochs that were measured, or samples of a worker at work: fewer support nothing."""
_BUSY_CORES = 0.1
"""A worker that uses less has nothing to do."""
_REQUEST, _LIMIT, _CORES = 1.15, 1.3, 1.1
"""Room above what nearly all used, above the most, and above the processors that were used."""
_NEARLY_ALL, _MOST_OF_TIME = 0.95, 0.9
_STEP_BYTES, _STEP_CORES = 256 << 20, 0.5
_DIFFERENCE = 0.2
"""A value that is so near to what there is stays."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was measured of one container.

    Attributes:
        record: as its worker registered.
        samples: of the last day, each half minute.
    """

    record: WorkerRecord
    samples: Sequence[UsageSample]

    @property
    def role(self) -> Role:
        """Which container of its pod it is."""
        return "worker" if "train" in self.record.kinds else "etl"


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Values for the containers of one role.

    Attributes:
        request_bytes, limit_bytes: of memory.
        cores: to request, in steps of half a core; `None`: not measured.
        most_bytes: that one of them has used.
        limit_now, cores_now: of those there are: the smallest limit, `None` where there is none; and the most cores.
        samples, attempts: on which the values rest.
    """

    role: Role
    request_bytes: int
    limit_bytes: int
    cores: float | None
    most_bytes: int
    limit_now: int | None
    cores_now: int
    samples: int
    attempts: int

    @property
    def is_near(self) -> bool:
        """Whether what there is differs little from what is recommended."""
        memory = self.limit_now is not None and _is_near(self.limit_bytes, self.limit_now)
        return memory and (self.cores is None or _is_near(self.cores, self.cores_now))


def recommend(seen: Iterable[Seen], peaks: Sequence[int]) -> dict[Role, Recommendation | None]:
    """A recommendation for each role that workers have; `None` where too little was measured.

    Args:
        seen: containers that are there.
        peaks: most memory that the process of a sub-epoch had at once, in bytes, of each sub-epoch that told it.
    """
    by_role: dict[Role, list[Seen]] = {}
    for each in seen:
        by_role.setdefault(each.role, []).append(each)
    return {
        role: _recommended(role, containers, peaks if role == "worker" else ())
        for role, containers in sorted(by_role.items())
    }


def _recommended(role: Role, containers: Sequence[Seen], peaks: Sequence[int]) -> Recommendation | None:
    usages = [sample.usage for each in containers for sample in each.samples]
    busy = [u for u in usages if u.cores_used is not None and u.cores_used >= _BUSY_CORES]
    memory = sorted(u.memory_bytes for u in busy if u.memory_bytes is not None)
    # Beside the processes of sub-epochs there is the agent, as it is while nothing runs.
    idle = min((u.memory_bytes for u in usages if u.memory_bytes is not None), default=0)
    at_once = max((max(1, len(each.record.devices)) for each in containers), default=1)
    sub_epochs = sorted(idle + at_once * peak for peak in peaks)
    if max(len(memory), len(sub_epochs)) < LEAST_ATTEMPTS:
        return None
    # A sample each half minute misses short peaks, and the peaks of sub-epochs miss what else there is: the larger
    # counts.
    usual = max(_quantile(values, _NEARLY_ALL) for values in (memory, sub_epochs) if values)
    most = max(values[-1] for values in (memory, sub_epochs) if values)
    cores = sorted(u.cores_used for u in busy if u.cores_used is not None)
    request = _steps(_REQUEST * usual, _STEP_BYTES)
    limits = [u.memory_limit_bytes for u in usages if u.memory_limit_bytes is not None]
    return Recommendation(
        role=role,
        request_bytes=int(request),
        limit_bytes=int(max(_steps(_LIMIT * most, _STEP_BYTES), request)),
        cores=_steps(_CORES * _quantile(cores, _MOST_OF_TIME), _STEP_CORES) if cores else None,
        most_bytes=int(most),
        limit_now=min(limits, default=None),
        cores_now=max(each.record.cores for each in containers),
        samples=len(busy),
        attempts=len(sub_epochs),
    )


def _quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    return ascending[math.ceil(share * len(ascending)) - 1]


def _steps(value: float, step: float) -> float:
    return max(1, math.ceil(value / step)) * step


def _is_near(value: float, now: float) -> bool:
    return abs(value - now) <= _DIFFERENCE * now
