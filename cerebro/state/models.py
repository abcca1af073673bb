"""One model of a fit run: its visits to partitions, its metrics, the checkpoints it needs.

A *visit* is a committed unit, to one partition or to a set of them. The model's place in training follows from its
visits, so nothing can disagree with it: epoch and remaining partitions are derived. Within an epoch visits overlap in
no partition, and none goes over the epoch's end; so the number of partitions visited says how many epochs are complete.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef, Failure, Savepoint
from cerebro.state.visits import Visit, mean

if TYPE_CHECKING:
    from cerebro.state.ways import StruckOff


class ModelState(StrEnum):
    """Where a model stands."""

    ACTIVE = "active"  # has units to do, or validations
    STOPPED = "stopped"  # a user stopped it; its unit that runs is being taken back
    FINISHED = "finished"  # all epochs trained and validated
    FAILED = "failed"  # given up; the other models go on


CUT_SHORT = frozenset({ModelState.STOPPED, ModelState.FAILED})
"""Nothing more is due of such a model; what it has committed stays."""

TRANSITIONS: dict[tuple[ModelState, str], ModelState] = {
    (ModelState.ACTIVE, "ModelStopRequested"): ModelState.STOPPED,
    (ModelState.STOPPED, "ModelResumed"): ModelState.ACTIVE,
    (ModelState.FAILED, "ModelRetried"): ModelState.ACTIVE,
    # `Run.settle`; of a stopped model, if its unit was committed before it could be taken back.
    (ModelState.ACTIVE, "LastTaskEnded"): ModelState.FINISHED,
    (ModelState.STOPPED, "LastTaskEnded"): ModelState.FINISHED,
    # `cerebro.state.failures`.
    (ModelState.ACTIVE, "GivenUp"): ModelState.FAILED,
    (ModelState.STOPPED, "GivenUp"): ModelState.FAILED,
    (ModelState.FAILED, "GivenUp"): ModelState.FAILED,
    # Its run had ended, and is open again for another model alone.
    (ModelState.ACTIVE, "LeftOut"): ModelState.STOPPED,
}
"""(state, event) -> state. What it lacks has no effect: it is a user's command that came too late."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The newest savepoint of a model, in the middle of its unit `task`."""

    task: str
    attempt: int
    """That took it."""
    savepoint: Savepoint
    deaths: int = 0
    """Attempts that went on from it, and whose process or worker died before they took another one."""


_NOTHING: dict[str, float] = {}


@dataclass(kw_only=True, slots=True)
class Model:
    """A training configuration and how far it is. `visits` and `validations` change by its methods alone."""

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
    saved: Saved | None = None
    """Of the unit that comes next, if that was left in its middle. Any unit that is committed makes it worthless."""
    failure: Failure | None = None
    struck: dict[str, StruckOff] = field(default_factory=dict)
    """Label of each way that it cannot be trained by -> why (`cerebro.state.ways`)."""
    redone: int = 0
    """Attempts at its units that began, and not at a savepoint, although an earlier one had begun: work done again."""
    reopened: Counter[int] = field(default_factory=Counter)
    """Unit number -> how often its checkpoint was lost."""
    unreadable: set[int] = field(default_factory=set)
    """Epochs whose last checkpoint a validation could not read. The next unit starts from it, so it finds out as well
    and has it made again; until then the validation waits."""
    unvalidated: set[int] = field(default_factory=set)
    """Epochs whose validation was given up because no attempt could read their checkpoint: nobody needs it now."""
    trained_s: float = 0.0
    """Seconds of its visits, without what their processes took to start."""
    compute_s: float = 0.0
    """Seconds of them in user code."""
    rows: int = 0
    """Rows of its visits."""
    visited: int = 0
    """Partitions that its visits were to, added up over all epochs."""
    _visited: set[int] = field(default_factory=set, repr=False, compare=False)
    """Partitions that its present epoch has visited."""
    _ends: list[int] = field(default_factory=list, repr=False, compare=False)
    """Of each complete epoch: how many visits there were at its end."""
    _means: dict[int, dict[str, float]] = field(default_factory=dict, repr=False, compare=False)
    """Epoch -> `training_metrics`, of complete epochs that somebody asked for."""
    _best: dict[tuple[str, str, bool], int | None] = field(default_factory=dict, repr=False, compare=False)
    """Arguments of `best_epoch` -> answer, until something is known that may change it."""

    # --- what changes it -------------------------------------------------------------------------

    def move(self, event: str) -> bool:
        """Change its state by the table; whether it did."""
        target = TRANSITIONS.get((self.state, event))
        self.state = target or self.state
        return target is not None

    def give_up(self, failure: Failure) -> None:
        """Mark it failed; `failure` says why."""
        if self.move("GivenUp"):
            self.failure = failure

    def add(self, visit: Visit) -> None:
        """A unit was committed."""
        self.saved = None
        self.visits.append(visit)
        self.trained_s += visit.seconds
        self.compute_s += visit.compute_s
        self.rows += visit.rows
        partitions = visit.partitions
        self.visited += len(partitions)
        self._visited.update(partitions)
        if not self.visited % len(self.partitions):
            self._ends.append(len(self.visits))
            self._visited.clear()
            self._best.clear()

    def take_back(self) -> Visit:
        """The newest unit is to be done again."""
        self.saved = None
        lost = self.visits.pop()
        self.visited -= len(lost.partitions)
        del self._ends[self.completed_epochs :]
        begun = self.visits[self._ends[-1] if self._ends else 0 :]
        self._visited = {partition for visit in begun for partition in visit.partitions}
        self.unreadable.discard(lost.epoch)
        self.trained_s = sum(visit.seconds for visit in self.visits)
        self.compute_s = sum(visit.compute_s for visit in self.visits)
        self.rows -= lost.rows
        self._means.pop(lost.epoch, None)
        self._best.clear()
        return lost

    def validate(self, epoch: int, metrics: dict[str, float]) -> None:
        """The validation of an epoch was committed."""
        self.validations[epoch] = metrics
        self._best.clear()

    def save(self, task: str, attempt: int, savepoint: Savepoint) -> None:
        """Its unit `task` can go on from here."""
        self.saved = Saved(task=task, attempt=attempt, savepoint=savepoint)

    def savepoint_of(self, task: str) -> Savepoint | None:
        """Where its unit `task` goes on, if not at its beginning."""
        return self.saved.savepoint if self.saved is not None and self.saved.task == task else None

    # --- where it stands -------------------------------------------------------------------------

    @property
    def is_cut_short(self) -> bool:
        """Whether it ended, or is stopped, before its last epoch: nothing more of it is due."""
        return self.state in CUT_SHORT

    @property
    def is_trained(self) -> bool:
        """Whether every unit of every epoch is committed."""
        return self.visited >= self.epochs * len(self.partitions)

    @property
    def is_between_epochs(self) -> bool:
        """Whether its newest unit was the last one of an epoch, or the very first."""
        return len(self.visits) <= 1 or not self.visited % len(self.partitions)

    @property
    def epoch(self) -> int:
        """The epoch its next unit belongs to, from 1; `epochs` once trained."""
        return min(self.completed_epochs + 1, self.epochs)

    @property
    def completed_epochs(self) -> int:
        """Epochs whose units are all committed."""
        return self.visited // len(self.partitions)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Partitions its present epoch has yet to visit, ascending; empty once trained."""
        if self.is_trained:
            return ()
        return tuple(p for p in self.partitions if p not in self._visited)

    @property
    def due(self) -> int:
        """Visits to partitions that are left to do, over all epochs."""
        return self.epochs * len(self.partitions) - self.visited

    def visit(self, epoch: int, partition: int) -> Visit | None:
        """The visit of a partition in an epoch, if there is one: alone, or in a set."""
        if epoch > self.completed_epochs and partition not in self._visited:
            return None
        for visit in self.epoch_visits(epoch):
            if partition in visit.partitions:
                return visit
        return None

    def needs(self, epoch: int, partitions: Collection[int]) -> bool:
        """Whether a unit on this set may be its next: it has visited none of them in this epoch."""
        is_due = epoch == self.epoch and not self.is_trained and bool(partitions)
        return is_due and self._visited.isdisjoint(partitions) and set(partitions).issubset(self.partitions)

    def visits_until(self, epoch: int) -> int:
        """How many visits there are of epochs up to this one."""
        return self._ends[epoch - 1] if 0 < epoch <= len(self._ends) else len(self.visits) if epoch > 0 else 0

    def epochs_before(self, unit: int) -> int:
        """How many epochs were complete before the unit of that number, from 0."""
        return bisect_right(self._ends, unit)

    def epoch_visits(self, epoch: int) -> list[Visit]:
        """The visits of one epoch, in order."""
        return self.visits[self.visits_until(epoch - 1) : self.visits_until(epoch)]

    def epoch_checkpoint(self, epoch: int) -> CheckpointRef | None:
        """The state at the end of an epoch, or `None` while it is not reached."""
        return self.visits[self._ends[epoch - 1] - 1].checkpoint if epoch <= self.completed_epochs else None

    def may_be_validated(self, epoch: int) -> bool:
        """Whether the validation of a completed epoch may still come."""
        return epoch not in self.validations and epoch not in self.unvalidated

    # --- how good it is --------------------------------------------------------------------------

    def training_metrics(self, epoch: int) -> dict[str, float]:
        """Means over the visits of an epoch, weighted by rows; a metric some unit lacks is left out."""
        return dict(self._mean(epoch))

    def _mean(self, epoch: int) -> dict[str, float]:
        means = self._means.get(epoch)
        if means is None:
            means = mean(self.epoch_visits(epoch))
            if 1 <= epoch <= self.completed_epochs:
                self._means[epoch] = means
        return means

    def metric(self, name: str, epoch: int, *, validated: bool) -> float | None:
        """A metric of a completed epoch: from validation if the run validates, else from training; `None` if
        unknown.
        """
        if epoch > self.completed_epochs:
            return None
        source = self.validations.get(epoch, {}) if validated else self._mean(epoch)
        value = source.get(name)
        return value if value is not None and math.isfinite(value) else None

    def scores(self, name: str, *, validated: bool) -> dict[int, float]:
        """`metric` of each epoch that has it, ascending."""
        found = {}
        for epoch in range(1, self.completed_epochs + 1):
            value = (self.validations.get(epoch, _NOTHING) if validated else self._mean(epoch)).get(name)
            if value is not None and math.isfinite(value):
                found[epoch] = value
        return found

    def latest_epoch(self, name: str, *, validated: bool) -> int | None:
        """The newest epoch that has the metric; `None` while there is none."""
        for epoch in range(self.completed_epochs, 0, -1):
            if self.metric(name, epoch, validated=validated) is not None:
                return epoch
        return None

    def best_epoch(self, name: str, mode: str, *, validated: bool) -> int | None:
        """The epoch with the best metric, the earliest among equals; `None` while there is none."""
        asked = (name, mode, validated)
        if asked not in self._best:
            known = self.scores(name, validated=validated)
            sign = 1 if mode == "max" else -1
            self._best[asked] = max(known, key=lambda epoch: (sign * known[epoch], -epoch), default=None)
        return self._best[asked]

    def needed_checkpoints(self, name: str, mode: str, *, validated: bool) -> set[str]:
        """Names of checkpoints that must not be removed.

        The newest (the next unit's input), the one before (should the newest turn out corrupt, its unit is redone from
        there), ends of epochs whose validation is still due, and the best epoch's.
        """
        names = {visit.file for visit in self.visits[-2:]}
        completed = range(1, self.completed_epochs + 1)
        waiting = [epoch for epoch in completed if validated and self.may_be_validated(epoch)]
        for epoch in {*waiting, self.best_epoch(name, mode, validated=validated) or 0}:
            if 0 < epoch <= self.completed_epochs:
                names.add(self.visits[self._ends[epoch - 1] - 1].file)
        return names
