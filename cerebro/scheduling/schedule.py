"""A schedule: when each unit runs where. Data only; whether it is right is for `cerebro.scheduling.validator`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One model on one partition in one epoch, from `start` to `end` (seconds) on `gpus` GPUs of a worker; or on a set
    of partitions, on as many GPUs of each worker of a gang.

    Indices as in `Problem`; epochs count from 1. `others` are the pairs (partition, worker) beside the first.
    """

    model: int
    partition: int
    worker: int
    start: float
    end: float
    epoch: int = 1
    gpus: int = 1
    technique: str = ""
    others: tuple[tuple[int, int], ...] = ()

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(partition, worker) that it takes."""
        return ((self.partition, self.worker), *self.others)


@dataclass(frozen=True)
class Schedule:
    """Units in the order of their start (then of worker)."""

    units: tuple[Unit, ...]

    @classmethod
    def of(cls, units: Iterable[Unit]) -> Schedule:
        """A schedule of `units`, put in order."""
        return cls(tuple(sorted(units, key=lambda unit: (unit.start, unit.worker, unit.model))))

    @property
    def makespan(self) -> float:
        """Seconds until the last unit ends (C of both papers)."""
        return max((unit.end for unit in self.units), default=0.0)

    def by_worker(self) -> dict[int, list[Unit]]:
        """Worker -> its units in the order of their start."""
        found: dict[int, list[Unit]] = defaultdict(list)
        for unit in self.units:
            for _, worker in unit.places:
                found[worker].append(unit)
        return dict(found)


def devices(units: Iterable[Unit]) -> dict[Unit, tuple[int, ...]]:
    """Which GPUs (from 0) of its worker each unit runs on.

    First fit in the order of start: as long as no worker is overbooked at any instant, so many GPUs are enough, since a
    unit may take any of those that are free.
    """
    free_at: dict[int, list[float]] = defaultdict(list)
    found: dict[Unit, tuple[int, ...]] = {}
    for unit in sorted(units, key=lambda u: (u.start, u.end)):
        ends = free_at[unit.worker]
        # Ends and starts come from the same sums, but perhaps not in the same order of addition.
        free = [gpu for gpu, end in enumerate(ends) if end <= unit.start + 1e-9 * max(1.0, unit.start)]
        while len(free) < unit.gpus:
            ends.append(0.0)
            free.append(len(ends) - 1)
        found[unit] = tuple(free[: unit.gpus])
        for gpu in found[unit]:
            ends[gpu] = unit.end
    return found
