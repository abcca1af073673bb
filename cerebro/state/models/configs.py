"""Training config of a model, in numbered versions."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.records import Hyperparameters


def is_same(one: Hyperparameters, other: Hyperparameters) -> bool:
    """True if user code sees equal hyperparameters; 1, 1.0 and true are different."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class TrainingConfig(NamedTuple):
    """Training config of a model: one numbered version."""

    hyperparams: Hyperparameters
    epochs: int


@dataclass(kw_only=True, slots=True)
class ConfigVersions:
    """All versions of a model's training config."""

    versions: list[TrainingConfig] = field(default_factory=list)
    """Oldest first."""
    active: int = 0
    """Index in `versions` for the newest open sub-epoch."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    """(first sub-epoch, index in `versions`) of each change among committed sub-epochs, ascending."""

    def add(self, hyperparams: Hyperparameters, epochs: int) -> None:
        """Add a version, unless it equals the newest."""
        last = self.versions[-1] if self.versions else None
        if last is None or epochs != last.epochs or not is_same(hyperparams, last.hyperparams):
            self.versions.append(TrainingConfig(hyperparams, epochs))

    def commit(self, sub_epoch: int) -> None:
        """Record that a sub-epoch with the active version is committed."""
        if (self.begun[-1][1] if self.begun else 0) != self.active:
            self.begun.append((sub_epoch, self.active))

    def undo(self, sub_epochs: int) -> None:
        """Forget changes after the first `sub_epochs` sub-epochs."""
        self.begun = [each for each in self.begun if each[0] < sub_epochs]

    def inherit(self, parent: ConfigVersions, sub_epochs: int) -> None:
        """Put the parent's versions before these."""
        self.versions = [*parent.versions, *self.versions]
        self.begun = [each for each in parent.begun if each[0] < sub_epochs]
        self.active = len(self.versions) - 1

    def of(self, sub_epoch: int) -> TrainingConfig:
        """Return the config of a committed sub-epoch, numbered from 0."""
        place = bisect_right(self.begun, (sub_epoch, len(self.versions)))
        return self.versions[self.begun[place - 1][1] if place else 0]

    def changes(self, sub_epochs: int, *, is_busy: bool) -> Iterator[tuple[int, Hyperparameters]]:
        """Yield (sub-epoch, hyperparameters before it) for each change, ascending.

        Args:
            sub_epochs: number of committed sub-epochs.
            is_busy: True if another one is open.
        """
        starts = [*self.begun, (sub_epochs + is_busy, len(self.versions) - 1)]
        if is_busy:
            starts.insert(-1, (sub_epochs, self.active))
        previous = self.versions[0].hyperparams
        for sub_epoch, number in starts:
            hyperparams = self.versions[number].hyperparams
            if sub_epoch and previous != hyperparams:
                yield sub_epoch, previous
            previous = hyperparams

    @property
    def has_changed(self) -> bool:
        """True if the hyperparameters ever changed.

        Measurements then don't transfer between this model and models that were alike at inspection."""
        newest = self.versions[-1].hyperparams
        return len(self.versions) > 1 and not all(is_same(each.hyperparams, newest) for each in self.versions)
