"""Placements of sub-epochs, and schedules. Data only; `cerebro.scheduling.validator` checks schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Placement(NamedTuple):
    """One model on one partition at a worker: chosen, running, or part of a plan or schedule.

    Indices as in `Problem`. A policy sets only the first three fields; for a gang the caller also sets `gpus` and
    `other_members`.
    `DispatchState.start` adds `epoch`, `start` and `gpus`; the other fields keep their defaults. A named tuple,
    because simulations create millions of placements.

    Attributes:
        epoch: epoch of the model, from 1.
        start, end: seconds; infinite if unknown.
        gpus: GPUs of the worker, or of each worker of a gang.
        technique: name of the parallel plan's technique.
        other_members: (partition, worker) of each further member of a gang.
        group: its fused group, whose sub-epochs share the GPUs; empty without one.
        sharing: number of sub-epochs in the group at its start.
    """

    worker: int
    model: int
    partition: int
    epoch: int = 1
    start: float = math.inf
    end: float = math.inf
    gpus: int = 1
    technique: str = ""
    other_members: tuple[tuple[int, int], ...] = ()
    group: str = ""
    sharing: int = 1

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.end - self.start

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """All (partition, worker) pairs."""
        return ((self.partition, self.worker), *self.other_members)


@dataclass(frozen=True)
class Schedule:
    """Sub-epochs, ordered by start, worker and model. `of` sorts them; the constructor expects this order."""

    sub_epochs: tuple[Placement, ...]

    @classmethod
    def of(cls, sub_epochs: Iterable[Placement]) -> Schedule:
        """Sort sub-epochs into a schedule."""
        return cls(
            tuple(
                sorted(sub_epochs, key=lambda sub_epoch: (sub_epoch.start, sub_epoch.worker, sub_epoch.model))
            )
        )

    @property
    def makespan(self) -> float:
        """Seconds until the last sub-epoch ends (C in both papers)."""
        return max((sub_epoch.end for sub_epoch in self.sub_epochs), default=0.0)
