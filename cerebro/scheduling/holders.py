"""Workers that hold each partition, as bit masks and as lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Holders:
    """Replicas of all partitions at one instant. A change makes a new object, so copies of a state share it.

    Attributes:
        held: ``held[w]``, mask of the partitions on worker `w`; 0 while it is away.
        num_partitions: number of partitions, including those without a holder.
    """

    held: tuple[int, ...]
    num_partitions: int

    @classmethod
    def from_lists(cls, holders: Sequence[Sequence[int]], num_workers: int) -> Holders:
        """Return the holders from the workers of each partition."""
        held = [0] * num_workers
        for partition, workers in enumerate(holders):
            for worker in workers:
                held[worker] |= 1 << partition
        return cls(tuple(held), len(holders))

    @cached_property
    def of(self) -> tuple[tuple[int, ...], ...]:
        """``of[p]``, the workers that have partition `p` now."""
        found: list[list[int]] = [[] for _ in range(self.num_partitions)]
        for worker, held in enumerate(self.held):
            remaining_mask = held
            while remaining_mask:
                lowest = remaining_mask & -remaining_mask
                remaining_mask ^= lowest
                found[lowest.bit_length() - 1].append(worker)
        return tuple(tuple(workers) for workers in found)

    @cached_property
    def is_replicated(self) -> bool:
        """True if some partition has several holders."""
        return any(len(workers) > 1 for workers in self.of)

    @cached_property
    def unheld(self) -> int:
        """Mask of the partitions without a holder."""
        return sum(1 << p for p, workers in enumerate(self.of) if not workers)
