"""Lineage, progress and effort of a model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

from cerebro.contract.records import Hyperparameters
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """Place of a model in a cross-validation.

    Attributes:
        configuration: name that the models of one configuration share, such as ``m03``.
        number: from 1.
        partitions: training partitions that the model validates on, and never trains on.
    """

    configuration: str
    number: int
    partitions: tuple[int, ...]


@dataclass(kw_only=True, slots=True)
class Lineage:
    """Parent of a model, and the sub-epochs that it inherits."""

    parent: str = ""
    """Model that lent its hyperparameters, if any."""
    seed: int | None = None
    """Seed of a repeat of the parent. `None`: the model has the run's seed."""
    fold: Fold | None = None
    """Fold of a cross-validation; `None` in other runs."""
    sub_epochs: int = 0
    """Number of leading sub-epochs that belong to the parent; training continues from the last one's checkpoint."""
    partitions: int = 0
    """Partitions of the inherited sub-epochs, summed over epochs."""
    rows: int = 0
    """Rows of the inherited sub-epochs."""
    changes: tuple[tuple[int, Hyperparameters], ...] = ()
    """(trained partitions, hyperparameters from there on) of a repeat, ascending, copied from its parent."""


@dataclass(kw_only=True, slots=True)
class Effort:
    """Work spent on a model, without inherited sub-epochs. Times are in seconds."""

    began: float = 0.0
    """Start of the first sub-epoch; 0 before."""
    trained_s: float = 0.0
    """Time of the sub-epochs, without process start."""
    compute_s: float = 0.0
    """Time of the sub-epochs in user code."""
    rows: int = 0
    """Rows of the sub-epochs."""
    repeated_attempts: int = 0
    """Attempts that repeated an earlier attempt's work, because they started without a savepoint."""

    def add(self, sub_epoch: CompletedSubEpoch, *, is_first: bool) -> None:
        """Add a committed sub-epoch."""
        if is_first:
            self.began = sub_epoch.started
        self.trained_s += sub_epoch.seconds
        self.compute_s += sub_epoch.timings.compute_s
        self.rows += sub_epoch.rows

    def remove(self, lost: CompletedSubEpoch, *, was_only: bool) -> None:
        """Undo `add`."""
        if was_only:
            self.began = self.trained_s = self.compute_s = 0.0
        else:
            self.trained_s -= lost.seconds
            self.compute_s -= lost.timings.compute_s
        self.rows -= lost.rows


@dataclass(kw_only=True, slots=True)
class EpochProgress:
    """Trained partitions of a model, by epoch."""

    trained: int = 0
    """Trained partitions, summed over all epochs."""
    current: set[int] = field(default_factory=set)
    """Partitions trained in the current epoch."""
    ends: list[int] = field(default_factory=list)
    """Number of sub-epochs at the end of each complete epoch."""

    def add(self, partitions: Collection[int], *, num_partitions: int, sub_epochs: int) -> None:
        """Add a committed sub-epoch.

        Args:
            num_partitions: number of partitions of an epoch.
            sub_epochs: number of sub-epochs with this one.
        """
        self.trained += len(partitions)
        self.current.update(partitions)
        if not self.trained % num_partitions:
            self.ends.append(sub_epochs)
            self.current.clear()

    def remove(self, lost: Collection[int], partitions: Collection[int]) -> None:
        """Undo `add`.

        Args:
            partitions: all partitions of an epoch.
        """
        if not self.current:
            self.current.update(partitions)
        self.current.difference_update(lost)
        self.trained -= len(lost)
        del self.ends[self.trained // len(partitions) :]

    def epochs_before(self, sub_epoch: int) -> int:
        """Return the number of epochs completed before a sub-epoch, numbered from 0."""
        return bisect_right(self.ends, sub_epoch)
