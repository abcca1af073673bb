"""Load of each worker if replicas share sub-epochs evenly, and the effect of another replica. Pure.

The controller decides with it where another replica of a partition helps, now and in forecasts with more workers.

A fluid limit: sub-epochs are divisible and need no order. The loads are lower bounds for dispatch on the same
replicas and cost microseconds instead of a simulation. A worker's pace is the time it needs for a second of
work of an average worker. `Balance` divides one partition after the other among its holders, least loaded
first, and repeats until the loads hardly change (coordinate descent on a convex function).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SWEEPS = 12
"""Sweeps over all shared partitions; enough for chains of workers that share with neighbours only."""

_STILL = 1e-3
"""Relative change of loads in a sweep below which the loads count as balanced.

The largest change of any load, relative to the largest load.
"""


class Balance:
    """Loads of workers in seconds, with shared partitions divided among their holders.

    Args:
        work: remaining work of each partition, in seconds of an average worker.
        pace: slowness factor of each worker.
        holders: workers with a replica of each partition. Partitions without holders are ignored.

    Attributes:
        loads: load of each worker.
        holders: as given, with added replicas.
    """

    def __init__(
        self, work: Sequence[float], pace: Sequence[float], holders: Iterable[Sequence[int]]
    ) -> None:
        self._work, self._pace = work, pace
        self.holders = [tuple(each) for each in holders]
        self.loads = [0.0] * len(pace)
        self._parts: list[dict[int, float]] = [{} for _ in work]
        """For each partition: worker -> its share of the work, in seconds."""
        for partition in sorted(range(len(work)), key=lambda p: len(self.holders[p])):
            self._pour(partition)  # partitions with one holder come first
        self._settle()

    def level(self, partition: int) -> float:
        """Return the largest load among the workers that share the partition."""
        return max((self.loads[worker] for worker in self._parts[partition]), default=0.0)

    def level_with(self, partition: int, worker: int) -> float:
        """Return `level` if the worker had a replica too, with all other shares unchanged."""
        base = dict.fromkeys((*self.holders[partition], worker), 0.0)
        for each in base:
            base[each] = self.loads[each] - self._parts[partition].get(each, 0.0)
        return _level(self._work[partition], [(load, self._pace[each]) for each, load in base.items()])

    def add(self, partition: int, worker: int) -> None:
        """Add a replica and rebalance."""
        if worker not in self.holders[partition]:
            self.holders[partition] = (*self.holders[partition], worker)
            self._pour(partition)
            self._settle()

    def _settle(self) -> None:
        shared = [p for p, holders in enumerate(self.holders) if len(holders) > 1 and self._work[p]]
        for _ in range(_SWEEPS if len(shared) > 1 else 0):
            previous_loads = list(self.loads)
            for partition in shared:
                self._pour(partition)
            # Compare all loads: the largest may stay equal in a sweep while others change.
            changed = max(abs(now - then) for now, then in zip(self.loads, previous_loads, strict=True))
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
    """Return the load of all sharing holders after dividing the work, least loaded first.

    Holders are pairs (load, pace). Returns the smallest load without work, and 0 without holders.
    """
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
