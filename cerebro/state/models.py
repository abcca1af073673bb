"""One model of a fit run: its visits to partitions, its metrics, the checkpoints it needs.

A *visit* is a committed unit. The model's place in training is the number of its visits, so nothing can
disagree with it: epoch and remaining partitions are derived.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef, Failure


class ModelState(StrEnum):
    """Where a model stands."""

    ACTIVE = "active"  # has units to do, or validations
    FINISHED = "finished"  # all epochs trained and validated
    FAILED = "failed"  # given up; the other models go on


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A committed unit. Times are the store's clock in seconds."""

    epoch: int
    partition: int
    attempt: int
    worker: str
    rows: int
    metrics: dict[str, float]
    checkpoint: CheckpointRef
    started: float
    ended: float
    compute_s: float


@dataclass(kw_only=True)
class Model:
    """A training configuration and how far it is."""

    id: str
    hyperparams: Hyperparameters
    epochs: int
    partitions: tuple[int, ...]
    state: ModelState = ModelState.ACTIVE
    visits: list[Visit] = field(default_factory=list)
    busy: str | None = None
    """Key of its open training unit: at most one, which is the isolation invariant."""
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    """Epoch -> what the user's test function returned."""
    failure: Failure | None = None
    reopened: Counter[int] = field(default_factory=Counter)
    """Unit number -> how often its checkpoint was lost."""
    unreadable: set[int] = field(default_factory=set)
    """Epochs whose last checkpoint a validation could not read. The next unit starts from it, so it finds out as well
    and has it made again; until then the validation waits."""

    @property
    def is_trained(self) -> bool:
        """Whether every unit of every epoch is committed."""
        return len(self.visits) >= self.epochs * len(self.partitions)

    @property
    def epoch(self) -> int:
        """The epoch its next unit belongs to, from 1; `epochs` once trained."""
        return min(len(self.visits) // len(self.partitions) + 1, self.epochs)

    @property
    def completed_epochs(self) -> int:
        """Epochs whose units are all committed."""
        return len(self.visits) // len(self.partitions)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Partitions its present epoch has yet to visit, ascending; empty once trained."""
        if self.is_trained:
            return ()
        done = {visit.partition for visit in self.visits[self.completed_epochs * len(self.partitions) :]}
        return tuple(p for p in self.partitions if p not in done)

    def epoch_visits(self, epoch: int) -> list[Visit]:
        """The visits of one epoch, in order."""
        size = len(self.partitions)
        return self.visits[(epoch - 1) * size : epoch * size]

    def epoch_checkpoint(self, epoch: int) -> CheckpointRef | None:
        """The state at the end of an epoch, or `None` while it is not reached."""
        return (
            self.visits[epoch * len(self.partitions) - 1].checkpoint
            if epoch <= self.completed_epochs
            else None
        )

    def training_metrics(self, epoch: int) -> dict[str, float]:
        """Means over the visits of an epoch, weighted by rows; a metric some unit lacks is left out."""
        visits = self.epoch_visits(epoch)
        if not visits:
            return {}
        names = set.intersection(*(set(visit.metrics) for visit in visits))
        rows = sum(visit.rows for visit in visits) or 1
        return {name: sum(v.metrics[name] * v.rows for v in visits) / rows for name in sorted(names)}

    def metric(self, name: str, epoch: int, *, validated: bool) -> float | None:
        """A metric of a completed epoch: from validation if the run validates, else from training; `None` if
        unknown.
        """
        if epoch > self.completed_epochs:
            return None
        source = self.validations.get(epoch, {}) if validated else self.training_metrics(epoch)
        value = source.get(name)
        return value if value is not None and math.isfinite(value) else None

    def best_epoch(self, name: str, mode: str, *, validated: bool) -> int | None:
        """The epoch with the best metric, the earliest among equals; `None` while there is none."""
        known = {
            epoch: value
            for epoch in range(1, self.completed_epochs + 1)
            if (value := self.metric(name, epoch, validated=validated)) is not None
        }
        if not known:
            return None
        sign = 1 if mode == "max" else -1
        return max(known, key=lambda epoch: (sign * known[epoch], -epoch))

    def needed_checkpoints(self, name: str, mode: str, *, validated: bool) -> set[str]:
        """Names of checkpoints that must not be removed.

        The newest (the next unit's input), the one before (should the newest turn out corrupt, its unit is redone from
        there), ends of epochs not validated yet, and the best epoch's.
        """
        names = {visit.checkpoint.name for visit in self.visits[-2:]}
        waiting = [e for e in range(1, self.completed_epochs + 1) if validated and e not in self.validations]
        for epoch in {*waiting, self.best_epoch(name, mode, validated=validated) or 0}:
            checkpoint = self.epoch_checkpoint(epoch) if epoch else None
            if checkpoint:
                names.add(checkpoint.name)
        return names
