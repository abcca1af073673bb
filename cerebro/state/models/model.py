"""A model of a fit run: completed sub-epochs, metrics and checkpoints to keep.

A *visit* is a committed sub-epoch on one partition or a set of partitions. Epoch and remaining partitions are derived
from the visits, so they cannot contradict them. Within an epoch the partitions of visits are disjoint, and no visit
crosses the end of an epoch: the number of visited partitions gives the number of completed epochs.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from cerebro.contract.parallel_plans import MemoryPlace, ParallelPlan
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef, Failure, FailureKind, Savepoint
from cerebro.state.models.committed_sub_epoch import Visit, mean
from cerebro.state.models.sub_epochs import EpochSummary, EpochTotals, Summaries, Visits, totals_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RuledOut:
    """A parallel plan ruled out for a model.
    Attributes:
        reason: one line, for people.
        kind: kind of the failure that ruled it out.
        place: memory that ran out; `None` if unknown or another failure.
        peak_bytes: peak use of that memory by the attempt; 0 if unknown.
    """

    parallel_plan: ParallelPlan
    reason: str
    kind: FailureKind
    place: MemoryPlace | None = None
    peak_bytes: int = 0


class ModelState(StrEnum):
    """State of a model."""

    ACTIVE = "active"  # sub-epochs or validations remain
    STOPPED = "stopped"  # by a user; the controller revokes its running sub-epoch
    FINISHED = "finished"  # all epochs trained and validated
    FAILED = "failed"  # the run continues with the other models


CUT_SHORT = frozenset({ModelState.STOPPED, ModelState.FAILED})
"""States in which a model trains no further; its committed sub-epochs stay."""

TRANSITIONS: dict[tuple[ModelState, str], ModelState] = {
    (ModelState.ACTIVE, "ModelStopRequested"): ModelState.STOPPED,
    (ModelState.STOPPED, "ModelResumed"): ModelState.ACTIVE,
    (ModelState.FAILED, "ModelRetried"): ModelState.ACTIVE,
    # `Run.settle`. A stopped model finishes if its sub-epoch commits before the controller revokes it.
    (ModelState.ACTIVE, "LastTaskEnded"): ModelState.FINISHED,
    (ModelState.STOPPED, "LastTaskEnded"): ModelState.FINISHED,
    # `cerebro.state.tasks.failure_events`.
    (ModelState.ACTIVE, "GivenUp"): ModelState.FAILED,
    (ModelState.STOPPED, "GivenUp"): ModelState.FAILED,
    (ModelState.FAILED, "GivenUp"): ModelState.FAILED,
    # A user stopped the model while the search was deciding.
    (ModelState.FINISHED, "StoppedAtRung"): ModelState.STOPPED,
    # More epochs were granted.
    (ModelState.FINISHED, "Extended"): ModelState.ACTIVE,
    # The run had ended and is open again for other models only.
    (ModelState.ACTIVE, "LeftOut"): ModelState.STOPPED,
}
"""(state, event) -> state. Ignore missing pairs: they are user commands that came too late."""


def is_same(one: Hyperparameters, other: Hyperparameters) -> bool:
    """True if user code sees equal hyperparameters; 1, 1.0 and true are different."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class Terms(NamedTuple):
    """Training config of a model: one numbered version."""

    hyperparams: Hyperparameters
    epochs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The newest savepoint of a model, taken during its sub-epoch `task`."""

    task: str
    attempt: int
    """Attempt that took the savepoint."""
    savepoint: Savepoint
    terms: int = 0
    """Version of the training config, as in `Model.given`."""
    deaths: int = 0
    """Attempts that continued from this savepoint and died before taking another."""


_NOTHING: dict[str, float] = {}
_MOST_WARNINGS = 20


class _Best(NamedTuple):
    """The best epoch among the first `through` epochs."""

    epoch: int | None
    score: float
    """Larger is better."""
    through: int

    def pick_better(self, epoch: int, score: float) -> _Best:
        """Return the better result; the earlier epoch wins ties."""
        is_better = self.epoch is None or score > self.score or (score == self.score and epoch < self.epoch)
        return self._replace(epoch=epoch, score=score) if is_better else self


@dataclass(kw_only=True, slots=True)
class Model:
    """A training config and its progress. Only methods change `visits` and `validations`."""

    id: str
    hyperparams: Hyperparameters
    epochs: int
    """Resource: number of epochs the model may train in all."""
    partitions: tuple[int, ...]
    parent: str = ""
    """Model that lent its hyperparameters, if any."""
    inherited: int = 0
    """Number of leading `visits` that belong to the parent; training continues from the last one's checkpoint."""
    horizon: int = 0
    """Epochs for the learning-rate schedule, if more than `epochs`.

    A search sets the largest resource of any model, so the schedule does not restart at each rung."""
    priority: int = 0
    """Models with a higher priority go first."""
    terms: list[Terms] = field(default_factory=list)
    """All versions of the training config, oldest first; the last one holds `hyperparams` and `epochs`."""
    active_version: int = 0
    """Index in `terms` for the newest open sub-epoch."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    """(first sub-epoch, index in `terms`) of each change among committed sub-epochs, ascending."""
    state: ModelState = ModelState.ACTIVE
    visits: Visits = field(default_factory=Visits)
    summaries: Summaries = field(default_factory=Summaries)
    """Sums of the first epochs, after their visits were compacted."""
    busy: str | None = None
    """Key of the open training sub-epoch. There is at most one: the isolation invariant."""
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    """Epoch -> metrics from the user's test function."""
    saved: Saved | None = None
    """Savepoint of the next sub-epoch, if an attempt left one. Any commit discards it."""
    failure: Failure | None = None
    struck: dict[str, RuledOut] = field(default_factory=dict)
    """Label of each parallel plan ruled out -> the reason (`cerebro.state.models.parallel_plans`)."""
    redone: int = 0
    """Attempts that repeated an earlier attempt's work, because they started without a savepoint."""
    reopened: Counter[int] = field(default_factory=Counter)
    """Sub-epoch number -> number of lost checkpoints."""
    unreadable: set[int] = field(default_factory=set)
    """Epochs whose last checkpoint a validation could not read.

    The validation waits. The next sub-epoch reads the same checkpoint and has it recomputed if it is corrupt."""
    unvalidated: set[int] = field(default_factory=set)
    """Epochs without validation, because no attempt could read their checkpoint."""
    taken_back: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """(epoch, partitions) of visits that were committed once and later undone."""
    removed: set[str] = field(default_factory=set)
    """Checkpoints that were removed although the model may need them (`cerebro.state.runs.pruning`)."""
    warnings: Counter[str] = field(default_factory=Counter)
    """Warning -> number of sub-epochs that reported it."""
    returns: tuple[str, ...] = ()
    """Metric names from the first sub-epoch."""
    began: float = 0.0
    """Start of the model's first own sub-epoch; 0 before."""
    trained_s: float = 0.0
    """Seconds of the visits, without process start."""
    compute_s: float = 0.0
    """Seconds of the visits in user code."""
    rows: int = 0
    """Rows of the visits."""
    visited: int = 0
    """Visited partitions, summed over all epochs."""
    _visited: set[int] = field(default_factory=set, repr=False, compare=False)
    """Partitions visited in the current epoch."""
    _ends: list[int] = field(default_factory=list, repr=False, compare=False)
    """Number of visits at the end of each complete epoch."""
    _inherited: int = field(default=0, repr=False, compare=False)
    """Partitions of inherited visits, summed over epochs."""
    inherited_rows: int = field(default=0, repr=False, compare=False)
    """Rows of inherited visits."""
    _means: dict[int, dict[str, float]] = field(default_factory=dict, repr=False, compare=False)
    """Epoch -> `training_metrics`, a cache for complete epochs."""
    _best: dict[tuple[str, str, bool], _Best] = field(default_factory=dict, repr=False, compare=False)
    """Arguments of `best_epoch` -> cached result."""
    _settled: int = field(default=0, repr=False, compare=False)
    """Number of leading epochs that await no validation."""

    def __post_init__(self) -> None:
        if not self.terms:
            self._agree()

    # --- changes ---------------------------------------------------------------------------------

    def move(self, event: str) -> bool:
        """Apply a transition of the table; return True if it exists."""
        target = TRANSITIONS.get((self.state, event))
        self.state = target or self.state
        return target is not None

    def give_up(self, failure: Failure) -> None:
        """Mark the model failed with the reason `failure`."""
        if self.move("GivenUp"):
            self.failure = failure

    def add(self, visit: Visit) -> None:
        """Add a committed sub-epoch."""
        sub_epoch = len(self.visits)
        if (self.begun[-1][1] if self.begun else 0) != self.active_version:
            self.begun.append((sub_epoch, self.active_version))
        self.saved = None
        self.visits.append(visit)
        if len(self.visits) == 1:
            self.returns = visit.names
        if self.own_sub_epochs == 1:
            self.began = visit.started
        self.trained_s += visit.seconds
        self.compute_s += visit.compute_s
        self.rows += visit.rows
        partitions = visit.partitions
        self.visited += len(partitions)
        self._visited.update(partitions)
        if not self.visited % len(self.partitions):
            self._ends.append(len(self.visits))
            self._visited.clear()

    def inherit(self, parent: Model, sub_epochs: int) -> None:
        """Start after the parent's first `sub_epochs` sub-epochs. Call it before any other change."""
        self.visits = parent.visits.until(sub_epochs)
        self._ends = [end for end in parent._ends if end <= sub_epochs]
        self.summaries = parent.summaries.until(len(self._ends))
        begun = self.visits[self._ends[-1] if self._ends else 0 :]
        self._visited = {partition for visit in begun for partition in visit.partitions}
        self.visited = self._inherited = len(self._ends) * len(self.partitions) + len(self._visited)
        epochs = range(1, len(self._ends) + 1)
        self.returns = parent.returns
        self.inherited_rows = sum(self.epoch_totals(epoch).rows for epoch in epochs) + sum(
            v.rows for v in begun
        )
        self.inherited = sub_epochs
        self.terms = [*parent.terms, *self.terms]
        self.begun = [each for each in parent.begun if each[0] < sub_epochs]
        self.active_version = len(self.terms) - 1

    def extend(self, epochs: int) -> bool:
        """Set the resource, at least the epochs already begun; return True if anything changes."""
        epochs = max(epochs, self.begun_epochs, 1)
        has_changed = epochs != self.epochs
        self.epochs = epochs
        if has_changed:
            self._agree()
        if not self.is_trained:
            has_changed |= self.move("Extended")
        return has_changed

    def change(self, hyperparams: Hyperparameters) -> bool:
        """Change hyperparameters for sub-epochs that have not begun; return True if any differs."""
        changed = {**self.hyperparams, **hyperparams}
        if is_same(changed, self.hyperparams):
            return False
        self.hyperparams = changed
        self._agree()
        return True

    def _agree(self) -> None:
        found = Terms(self.hyperparams, max(self.horizon, self.epochs))
        last = self.terms[-1] if self.terms else None
        if last is None or found.epochs != last.epochs or not is_same(found.hyperparams, last.hyperparams):
            self.terms.append(found)

    def take_back(self) -> Visit:
        """Undo the newest sub-epoch. Check `may_take_back` first."""
        self.saved = None
        lost = self.visits.pop()
        self.taken_back.add((lost.epoch, lost.partitions))
        self.begun = [each for each in self.begun if each[0] < len(self.visits)]
        if not self._visited:
            self._visited.update(self.partitions)
        self._visited.difference_update(lost.partitions)
        self.visited -= len(lost.partitions)
        if not self.visits:
            self.returns = ()
        if not self.own_sub_epochs:
            self.began = 0.0
        del self._ends[self.completed_epochs :]
        self.unreadable.discard(lost.epoch)
        has_own = len(self.visits) > self.inherited
        self.trained_s = self.trained_s - lost.seconds if has_own else 0.0
        self.compute_s = self.compute_s - lost.compute_s if has_own else 0.0
        self.rows -= lost.rows
        self._means.pop(lost.epoch, None)
        self._best.clear()
        return lost

    def archive(self, summary: EpochSummary, *, keeps_all: bool = False) -> list[Visit]:
        """Replace the visits of the oldest remaining epoch by `summary`.

        Keeps the epoch's last visit and the starting point, or every visit if `keeps_all`.

        Returns:
            The model's own visits among the compacted ones.
        """
        self.summaries.append(summary)
        epoch = len(self.summaries)
        first, until = self.visits.archived, self._ends[epoch - 1]
        gone = self.visits.archive(
            until, range(first, until) if keeps_all else (self.inherited - 1, until - 1)
        )
        self._means.pop(epoch, None)
        return gone[max(0, self.inherited - first) :]

    def validate(self, epoch: int, metrics: dict[str, float]) -> None:
        """Record the committed validation of an epoch."""
        if epoch in self.validations:
            self._best.clear()
        self.validations[epoch] = metrics
        for criterion, best in self._best.items():
            name, mode, validated = criterion
            if validated and self.inherited_epochs < epoch <= best.through:
                self._best[criterion] = self._better(best, epoch, name, mode, validated=True)

    def warn(self, warnings: Collection[str]) -> None:
        """Count the warnings of a committed sub-epoch, up to 20 different texts."""
        for text in warnings:
            if text in self.warnings or len(self.warnings) < _MOST_WARNINGS:
                self.warnings[text] += 1

    def try_validations_again(self) -> None:
        """Allow validations that were given up."""
        self.unvalidated.clear()
        self._settled = 0

    def save(self, task: str, attempt: int, savepoint: Savepoint) -> None:
        """Record the savepoint of sub-epoch `task`."""
        self.saved = Saved(task=task, attempt=attempt, savepoint=savepoint, terms=self.active_version)

    def savepoint_of(self, task: str) -> Savepoint | None:
        """Return the savepoint for sub-epoch `task`, if any."""
        return self.saved.savepoint if self.saved is not None and self.saved.task == task else None

    # --- progress --------------------------------------------------------------------------------

    @property
    def warning(self) -> str:
        """Warnings of the sub-epochs, joined to one text."""
        sub_epochs = self.own_sub_epochs
        found = [f"{text} (in {number} of {sub_epochs} sub-epochs)" for text, number in self.warnings.items()]
        return "; ".join(found)

    @property
    def kept_visits(self) -> list[Visit]:
        """The model's own visits that are not compacted."""
        since = self.inherited - self.visits.archived
        return self.visits.recent_visits[since:] if since > 0 else self.visits.recent_visits

    @property
    def known_visits(self) -> Iterator[Visit]:
        """`kept_visits` after pinned ones (`Visits`): every visit that may have a checkpoint."""
        yield from self.visits.pinned(self.inherited)
        yield from self.kept_visits

    @property
    def peaks(self) -> tuple[int, int]:
        """Peak memory of a sub-epoch: process and GPU, in bytes; 0 if unknown."""
        known = [self.summaries.peaks]
        known += [(visit.peak_bytes, visit.peak_gpu_bytes) for visit in self.visits.recent_visits]
        return max((host for host, _ in known), default=0), max((gpu for _, gpu in known), default=0)

    @property
    def own_sub_epochs(self) -> int:
        """Number of visits that are not inherited."""
        return len(self.visits) - self.inherited

    @property
    def own_visited(self) -> int:
        """Partitions of the model's own visits, summed over all epochs."""
        return self.visited - self._inherited

    @property
    def archived_epochs(self) -> int:
        """Number of leading epochs whose visits are compacted."""
        return bisect_right(self._ends, self.visits.archived) if self.visits.archived else 0

    @property
    def may_take_back(self) -> bool:
        """True if the newest sub-epoch can be undone; a compacted one cannot."""
        return bool(self.visits.recent_visits)

    @property
    def inherited_epochs(self) -> int:
        """Complete inherited epochs: the epoch of the branch."""
        return bisect_right(self._ends, self.inherited)

    @property
    def own_epochs(self) -> int:
        """Completed epochs without inherited ones."""
        return len(self._ends) - self.inherited_epochs if self.inherited else len(self._ends)

    def terms_of(self, sub_epoch: int) -> Terms:
        """Return the training config of a sub-epoch, numbered from 0.

        For an uncommitted sub-epoch: the config of its open attempt, or else the newest."""
        if sub_epoch >= len(self.visits):
            return self.terms[self.active_version if self.busy and sub_epoch == len(self.visits) else -1]
        place = bisect_right(self.begun, (sub_epoch, len(self.terms)))
        return self.terms[self.begun[place - 1][1] if place else 0]

    def hyperparams_of(self, sub_epoch: int) -> Hyperparameters:
        """Return the hyperparameters of a sub-epoch; see `terms_of`."""
        return self.terms_of(sub_epoch).hyperparams

    def hyperparams_shown(self, epoch: int | None) -> Hyperparameters:
        """Return the hyperparameters to show for `epoch`; default: the newest sub-epoch."""
        if len(self.terms) == 1 or not self.visits:
            return self.hyperparams
        sub_epoch = len(self.visits) - 1 if self.own_sub_epochs else len(self.visits)
        return self.hyperparams_at(epoch) if epoch else self.hyperparams_of(sub_epoch)

    def hyperparams_at(self, epoch: int) -> Hyperparameters:
        """Return the hyperparameters at the end of a complete epoch."""
        return self.hyperparams_of(self.visits_until(epoch) - 1)

    def terms_for(self, task: str) -> int:
        """Return the config version for sub-epoch `task`: the savepoint's, or else the newest."""
        is_saved = self.saved is not None and self.saved.task == task
        return self.saved.terms if is_saved and self.saved else len(self.terms) - 1

    @property
    def is_outdated(self) -> bool:
        """True if the open sub-epoch has old hyperparameters and must restart with the new ones."""
        if self.busy is None or self.active_version == self.terms_for(self.busy):
            return False
        return not is_same(self.terms[self.active_version].hyperparams, self.hyperparams)

    @property
    def changes(self) -> list[tuple[int, Hyperparameters]]:
        """(sub-epoch, hyperparameters before it) for each change, ascending."""
        sub_epochs = [*self.begun, (len(self.visits) + bool(self.busy), len(self.terms) - 1)]
        if self.busy:
            sub_epochs.insert(-1, (len(self.visits), self.active_version))
        found, previous_version = [], 0
        for sub_epoch, number in sub_epochs:
            if sub_epoch and self.terms[previous_version].hyperparams != self.terms[number].hyperparams:
                found.append((sub_epoch, self.terms[previous_version].hyperparams))
            previous_version = number
        return found

    @property
    def has_changed(self) -> bool:
        """True if the hyperparameters ever changed.

        Measurements then don't transfer between this model and models that were alike at inspection."""
        return len(self.terms) > 1 and not all(
            is_same(each.hyperparams, self.hyperparams) for each in self.terms
        )

    @property
    def is_pruned(self) -> bool:
        """True if the newest checkpoint was removed: nothing can continue this model."""
        return bool(self.visits) and self.visits[-1].file in self.removed

    @property
    def is_cut_short(self) -> bool:
        """True if the model failed or was stopped: no further work is due."""
        return self.state in CUT_SHORT

    @property
    def is_trained(self) -> bool:
        """True if every sub-epoch of every epoch is committed."""
        return self.visited >= self.epochs * len(self.partitions)

    @property
    def is_between_epochs(self) -> bool:
        """True after the last sub-epoch of an epoch, and after the very first one."""
        return len(self.visits) <= 1 or not self.visited % len(self.partitions)

    @property
    def epoch(self) -> int:
        """Epoch of the next sub-epoch, from 1; `epochs` once trained."""
        return min(self.completed_epochs + 1, self.epochs)

    @property
    def completed_epochs(self) -> int:
        """Epochs with all sub-epochs committed."""
        return self.visited // len(self.partitions)

    @property
    def begun_epochs(self) -> int:
        """Minimum for the resource: completed epochs and the current one, which may have an open sub-epoch."""
        return self.completed_epochs + (not self.is_trained)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Partitions left in the current epoch, ascending; empty once trained."""
        if self.is_trained:
            return ()
        return tuple(p for p in self.partitions if p not in self._visited)

    @property
    def due(self) -> int:
        """Partitions left to visit, summed over all epochs."""
        return self.epochs * len(self.partitions) - self.visited

    def visit(self, epoch: int, partition: int) -> Visit | None:
        """Return the visit of a partition in an epoch; `None` if missing or compacted."""
        if epoch > self.completed_epochs and partition not in self._visited:
            return None
        if epoch in self.summaries:
            return None
        for visit in self.epoch_visits(epoch):
            if partition in visit.partitions:
                return visit
        return None

    def has_visited(self, epoch: int, partition: int) -> bool:
        """True if the model has visited the partition in that epoch."""
        return epoch <= self.completed_epochs or (epoch == self.epoch and partition in self._visited)

    def needs(self, epoch: int, partitions: Collection[int]) -> bool:
        """True if the next sub-epoch may train on this set of partitions."""
        is_due = epoch == self.epoch and not self.is_trained and bool(partitions)
        return is_due and self._visited.isdisjoint(partitions) and set(partitions).issubset(self.partitions)

    def visits_until(self, epoch: int) -> int:
        """Return the number of visits up to the end of an epoch."""
        return self._ends[epoch - 1] if 0 < epoch <= len(self._ends) else len(self.visits) if epoch > 0 else 0

    def epochs_before(self, sub_epoch: int) -> int:
        """Return the number of epochs completed before a sub-epoch, numbered from 0."""
        return bisect_right(self._ends, sub_epoch)

    def epoch_visits(self, epoch: int) -> list[Visit]:
        """Return the visits of one epoch, in order.

        Raises:
            ArchivedError: the visits are compacted; see `summaries`.
        """
        return self.visits[self.visits_until(epoch - 1) : self.visits_until(epoch)]

    def returned_in(self, epoch: int) -> dict[str, bool]:
        """Return name -> True if a ratio, for an epoch's metrics; the first visit with a name decides."""
        if epoch in self.summaries:
            return dict(self.summaries[epoch].returned)
        found: dict[str, bool] = {}
        for names, ratios in dict.fromkeys((visit.names, visit.ratios) for visit in self.epoch_visits(epoch)):
            found = {name: name in ratios for name in names} | found
        return found

    def partitions_until(self, sub_epoch: int) -> int:
        """Count the partitions of the first `sub_epoch` visits; these end an epoch, or are all."""
        epochs = self.epochs_before(sub_epoch)
        begun = self.visits[self._ends[epochs - 1] if epochs else 0 : sub_epoch]
        return epochs * len(self.partitions) + sum(len(visit.partitions) for visit in begun)

    def epoch_totals(self, epoch: int) -> EpochTotals:
        """Return the sums over an epoch's visits, inherited ones included."""
        return (
            self.summaries[epoch].totals if epoch in self.summaries else totals_of(self.epoch_visits(epoch))
        )

    def epoch_checkpoint(self, epoch: int) -> CheckpointRef | None:
        """Return the checkpoint at the end of an epoch; `None` before."""
        return self.visits[self._ends[epoch - 1] - 1].checkpoint if epoch <= self.completed_epochs else None

    def may_be_validated(self, epoch: int) -> bool:
        """True if the validation of a completed epoch may still come."""
        return epoch not in self.validations and epoch not in self.unvalidated

    # --- metrics ---------------------------------------------------------------------------------

    def training_metrics(self, epoch: int) -> dict[str, float]:
        """Return the means over all visits of an epoch; see `mean`."""
        return dict(self._mean(epoch))

    def _mean(self, epoch: int) -> dict[str, float]:
        if epoch in self.summaries:
            return self.summaries[epoch].means
        means = self._means.get(epoch)
        if means is None:
            means = mean(self.epoch_visits(epoch))
            if 1 <= epoch <= self.completed_epochs:
                self._means[epoch] = means
        return means

    def metric(self, name: str, epoch: int, *, validated: bool) -> float | None:
        """Return a metric of a completed epoch, from validation if `validated`, else from training.

        `None` if unknown or not finite."""
        if epoch > self.completed_epochs:
            return None
        if validated:
            value = self.validations.get(epoch, _NOTHING).get(name)
        elif epoch in self.summaries:
            value = self.summaries.mean(epoch, name)
        else:
            value = self._mean(epoch).get(name)
        return value if value is not None and math.isfinite(value) else None

    def metrics(self, epoch: int, *, validated: bool) -> dict[str, float]:
        """Return all metrics of a completed epoch, from the same source as `metric`."""
        return dict(self.validations.get(epoch, _NOTHING) if validated else self._mean(epoch))

    def scores(self, name: str, *, validated: bool) -> dict[int, float]:
        """Return epoch -> metric, ascending, for epochs with a value."""
        found = {}
        for epoch in range(1, self.completed_epochs + 1):
            value = self.metric(name, epoch, validated=validated)
            if value is not None:
                found[epoch] = value
        return found

    def latest_epoch(self, name: str, *, validated: bool) -> int | None:
        """Return the newest epoch with the metric, if any."""
        for epoch in range(self.completed_epochs, 0, -1):
            if self.metric(name, epoch, validated=validated) is not None:
                return epoch
        return None

    def best_epoch(self, name: str, mode: str, *, validated: bool) -> int | None:
        """Return the model's own epoch with the best metric, the earliest among equals; `None` if no epoch has it."""
        criterion = (name, mode, validated)
        # Inherited epochs and their checkpoints belong to the parent.
        best = self._best.get(criterion) or _Best(None, 0.0, self.inherited_epochs)
        if criterion not in self._best or best.through < self.completed_epochs:
            for epoch in range(best.through + 1, self.completed_epochs + 1):
                best = self._better(best, epoch, name, mode, validated=validated)
            best = self._best[criterion] = best._replace(through=self.completed_epochs)
        return best.epoch

    def _better(self, best: _Best, epoch: int, name: str, mode: str, *, validated: bool) -> _Best:
        value = self.metric(name, epoch, validated=validated)
        return best if value is None else best.pick_better(epoch, value if mode == "max" else -value)

    def _awaiting_validation(self) -> list[int]:
        """Complete epochs that await validation."""
        while self._settled < self.completed_epochs and not self.may_be_validated(self._settled + 1):
            self._settled += 1
        return [
            epoch
            for epoch in range(self._settled + 1, self.completed_epochs + 1)
            if self.may_be_validated(epoch)
        ]

    def needed_checkpoints(self, name: str, mode: str, *, validated: bool) -> set[str]:
        """Return the names of checkpoints that must not be removed.

        These are the newest (input of the next sub-epoch), its predecessor (to recompute a corrupt newest one), the
        ends of epochs that await validation, and the best epoch's. Among inherited ones: only the starting point.
        """
        newest = range(max(len(self.visits) - 2, self.inherited - 1, 0), len(self.visits))
        names = {self.visits[sub_epoch].file for sub_epoch in newest if self.visits.knows(sub_epoch)}
        waiting = self._awaiting_validation() if validated else []
        for epoch in {*waiting, self.best_epoch(name, mode, validated=validated) or 0}:
            if 0 < epoch <= self.completed_epochs:
                names.add(self.visits[self._ends[epoch - 1] - 1].file)
        return names
