"""Savepoint, removed and lost checkpoints of a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cerebro.contract.tasks.checkpoints import Savepoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The newest savepoint of a model, taken during its sub-epoch `task`."""

    task: str
    attempt: int
    """Attempt that took the savepoint."""
    savepoint: Savepoint
    version: int = 0
    """Index of the training config in `ConfigVersions.versions`."""
    deaths: int = 0
    """Attempts that continued from this savepoint and died before taking another."""


@dataclass(kw_only=True, slots=True)
class ModelCheckpoints:
    """Savepoint of a model, and its removed and lost checkpoints."""

    saved: Saved | None = None
    """Savepoint of the next sub-epoch, if an attempt left one. Any commit discards it."""
    removed: set[str] = field(default_factory=set)
    """Checkpoints that were removed although the model may need them (`cerebro.state.runs.pruning`)."""
    losses: Counter[int] = field(default_factory=Counter)
    """Sub-epoch number -> number of lost checkpoints."""
    undone: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """(epoch, partitions) of sub-epochs that were committed once and later undone."""

    def savepoint_of(self, task: str) -> Savepoint | None:
        """Return the savepoint for sub-epoch `task`, if any."""
        return self.saved.savepoint if self.saved is not None and self.saved.task == task else None
