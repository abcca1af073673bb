"""How long each worker is busy if the holders of a partition share its visits as evenly as they can, and what another
copy of a partition would change. Pure.

A fluid limit: visits are divided without remainder and in any order, so what comes of it is a lower bound of what
dispatch makes of the same replicas, and costs some microseconds instead of a simulation. A worker's pace is what a
second of an average worker's work takes it. Loads are balanced partition by partition: each in its turn is poured over
its holders anew, the least loaded first, until nothing changes much (coordinate descent on a convex function).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SWEEPS = 12
"""Of all shared partitions: enough for chains of workers that share with their neighbours alone."""

_STILL = 1e-3
"""Change of any load in a sweep, relative to the largest, below which the loads are taken to be balanced."""


class Balance:
    """Loads of workers, in seconds, with the visits of shared partitions divided among their holders.

    Args:
        work: of each partition, all that is left to be done on it, in seconds of an average worker.
        pace: of each worker, by which factor it takes longer than that.
        holders: of each partition, the workers that hold it. What nobody holds is left out.

    Attributes:
        loads: of each worker.
        holders: as given, with what was added since.
    """

    def __init__(
        self, work: Sequence[float], pace: Sequence[float], holders: Iterable[Sequence[int]]
    ) -> None:
        self._work, self._pace = work, pace
        self.holders = [tuple(each) for each in holders]
        self.loads = [0.0] * len(pace)
        self._parts: list[dict[int, float]] = [{} for _ in work]
        """Of each partition: worker -> seconds that it has of it."""
        for partition in sorted(range(len(work)), key=lambda p: len(self.holders[p])):
            self._pour(partition)  # those first that only one can serve
        self._settle()

    def level(self, partition: int) -> float:
        """When the partition is done: the largest load of a worker that has a part of it."""
        return max((self.loads[worker] for worker in self._parts[partition]), default=0.0)

    def level_with(self, partition: int, worker: int) -> float:
        """The same, if the worker held it, too, and all else was divided as it is now."""
        base = dict.fromkeys((*self.holders[partition], worker), 0.0)
        for each in base:
            base[each] = self.loads[each] - self._parts[partition].get(each, 0.0)
        return _level(self._work[partition], [(load, self._pace[each]) for each, load in base.items()])

    def add(self, partition: int, worker: int) -> None:
        """From now on the worker holds the partition, too."""
        if worker not in self.holders[partition]:
            self.holders[partition] = (*self.holders[partition], worker)
            self._pour(partition)
            self._settle()

    def _settle(self) -> None:
        shared = [p for p, holders in enumerate(self.holders) if len(holders) > 1 and self._work[p]]
        for _ in range(_SWEEPS if len(shared) > 1 else 0):
            before = list(self.loads)
            for partition in shared:
                self._pour(partition)
            # Of all loads: the largest may stay for a sweep in which others make room.
            changed = max(abs(now - then) for now, then in zip(self.loads, before, strict=True))
            if changed <= _STILL * max(self.loads):
                return

    def _pour(self, partition: int) -> None:
        parts = self._parts[partition]
        for worker, seconds in parts.items():
            self.loads[worker] -= seconds
        holders = self.holders[partition]
        level = _level(self._work[partition], [(self.loads[w], self._pace[w]) for w in holders])
        parts.clear()
        for worker in holders:
            if level > self.loads[worker] or len(holders) == 1:
                parts[worker] = level - self.loads[worker]
                self.loads[worker] = level


def _level(work: float, holders: list[tuple[float, float]]) -> float:
    """The load of all that have a part, if the work is poured over holders of some (load, pace), the least loaded
    first; that of the least loaded if there is no work, 0 without holders."""
    if not holders:
        return 0.0
    holders.sort()
    rate = poured = 0.0
    level = holders[0][0]
    for number, (load, pace) in enumerate(holders):
        poured += (load - level) * rate
        if poured >= work and number:
            return load - (poured - work) / rate
        level = load
        rate += 1 / pace
    return level + (work - poured) / rate
