"""One model of a fit run: its visits to partitions, its metrics, the checkpoints it needs.

A *visit* is a committed sub-epoch, to one partition or to a set of them. The model's place in training follows from its
visits, so nothing can disagree with it: epoch and remaining partitions are derived. Within an epoch visits overlap in
no partition, and none goes over the epoch's end; so the number of partitions visited says how many epochs are complete.
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
from cerebro.state.archived import EpochSummary, EpochTotals, Summaries, Visits, totals_of
from cerebro.state.visits import Visit, mean


@dataclass(frozen=True, kw_only=True, slots=True)
class RuledOut:
    """A way that is ruled out for a model.

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
    """Where a model stands."""

    ACTIVE = "active"  # has sub-epochs to do, or validations
    STOPPED = "stopped"  # a user stopped it; its sub-epoch that runs is being taken back
    FINISHED = "finished"  # all epochs trained and validated
    FAILED = "failed"  # given up; the other models go on


CUT_SHORT = frozenset({ModelState.STOPPED, ModelState.FAILED})
"""Nothing more is due of such a model; what it has committed stays."""

TRANSITIONS: dict[tuple[ModelState, str], ModelState] = {
    (ModelState.ACTIVE, "ModelStopRequested"): ModelState.STOPPED,
    (ModelState.STOPPED, "ModelResumed"): ModelState.ACTIVE,
    (ModelState.FAILED, "ModelRetried"): ModelState.ACTIVE,
    # `Run.settle`; of a stopped model, if its sub-epoch was committed before it could be taken back.
    (ModelState.ACTIVE, "LastTaskEnded"): ModelState.FINISHED,
    (ModelState.STOPPED, "LastTaskEnded"): ModelState.FINISHED,
    # `cerebro.state.failures`.
    (ModelState.ACTIVE, "GivenUp"): ModelState.FAILED,
    (ModelState.STOPPED, "GivenUp"): ModelState.FAILED,
    (ModelState.FAILED, "GivenUp"): ModelState.FAILED,
    # A user stopped it while it waited for a search to decide whether it goes on.
    (ModelState.FINISHED, "StoppedAtRung"): ModelState.STOPPED,
    # It may be trained for more epochs.
    (ModelState.FINISHED, "Extended"): ModelState.ACTIVE,
    # Its run had ended, and is open again for another model alone.
    (ModelState.ACTIVE, "LeftOut"): ModelState.STOPPED,
}
"""(state, event) -> state. What it lacks has no effect: it is a user's command that came too late."""


def is_same(one: Hyperparameters, other: Hyperparameters) -> bool:
    """Whether user code is given the same: 1, 1.0 and true are three values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class Terms(NamedTuple):
    """What a model is trained with, until a user or a search changes it."""

    hyperparams: Hyperparameters
    epochs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The newest savepoint of a model, in the middle of its sub-epoch `task`."""

    task: str
    attempt: int
    """That took it."""
    savepoint: Savepoint
    terms: int = 0
    """With which it was begun, as in `Model.given`."""
    deaths: int = 0
    """Attempts that went on from it, and whose process or worker died before they took another one."""


_NOTHING: dict[str, float] = {}
_MOST_WARNINGS = 20


class _Best(NamedTuple):
    """The best epoch of the first `through`."""

    epoch: int | None
    score: float
    """Larger is better."""
    through: int

    def beside(self, epoch: int, score: float) -> _Best:
        """The better one of the two; of equals the earlier one."""
        is_better = self.epoch is None or score > self.score or (score == self.score and epoch < self.epoch)
        return self._replace(epoch=epoch, score=score) if is_better else self


@dataclass(kw_only=True, slots=True)
class Model:
    """A training configuration and how far it is. `visits` and `validations` change by its methods alone."""

    id: str
    hyperparams: Hyperparameters
    epochs: int
    """That it may be trained for in all: its grant."""
    partitions: tuple[int, ...]
    parent: str = ""
    """The model whose hyper-parameters it was made from, if any."""
    inherited: int = 0
    """Its first `visits`, which are its parent's: it goes on from the checkpoint of the last of them."""
    horizon: int = 0
    """Epochs that its learning-rate schedule is to count on, if they are more than its grant: of a model of a search,
    the most that any of them is trained for. A grant that grows from rung to rung would have it begin anew."""
    priority: int = 0
    """Sub-epochs of models of a higher one go first wherever they can."""
    terms: list[Terms] = field(default_factory=list)
    """All that there were, oldest first; the last are those of `hyperparams` and `epochs`."""
    given: int = 0
    """Which of `terms` its newest open sub-epoch has."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    """(sub-epoch, which of `terms` it and those after it were trained with), ascending; of sub-epochs that are
    committed."""
    state: ModelState = ModelState.ACTIVE
    visits: Visits = field(default_factory=Visits)
    summaries: Summaries = field(default_factory=Summaries)
    """What is remembered of the first epochs, of those whose visits are archived."""
    busy: str | None = None
    """Key of its open training sub-epoch: at most one, which is the isolation invariant."""
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    """Epoch -> what the user's test function returned."""
    saved: Saved | None = None
    """Of the sub-epoch that comes next, if that was left in its middle. Any sub-epoch that is committed makes it
    worthless."""
    failure: Failure | None = None
    struck: dict[str, RuledOut] = field(default_factory=dict)
    """Label of each way that it cannot be trained by -> why (`cerebro.state.parallel_plans`)."""
    redone: int = 0
    """Attempts at its sub-epochs that began, and not at a savepoint, although an earlier one had begun: work done
    again."""
    reopened: Counter[int] = field(default_factory=Counter)
    """Sub-epoch number -> how often its checkpoint was lost."""
    unreadable: set[int] = field(default_factory=set)
    """Epochs whose last checkpoint a validation could not read. The next sub-epoch starts from it, so it finds out as
    well and has it made again; until then the validation waits."""
    unvalidated: set[int] = field(default_factory=set)
    """Epochs whose validation was given up because no attempt could read their checkpoint: nobody needs it now."""
    taken_back: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """(epoch, partitions) of visits that were once committed and had to be done again."""
    removed: set[str] = field(default_factory=set)
    """Names of checkpoints of its visits that were removed although it may have asked for them
    (`cerebro.state.pruning`)."""
    warnings: Counter[str] = field(default_factory=Counter)
    """Warning -> number of sub-epochs that reported it."""
    returns: tuple[str, ...] = ()
    """Names of what its first sub-epoch returned."""
    began: float = 0.0
    """When its own first sub-epoch started; 0 before."""
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
    _inherited: int = field(default=0, repr=False, compare=False)
    """Partitions that its inherited visits were to."""
    inherited_rows: int = field(default=0, repr=False, compare=False)
    """Rows of its inherited visits."""
    _means: dict[int, dict[str, float]] = field(default_factory=dict, repr=False, compare=False)
    """Epoch -> `training_metrics`, of complete epochs that somebody asked for."""
    _best: dict[tuple[str, str, bool], _Best] = field(default_factory=dict, repr=False, compare=False)
    """Arguments of `best_epoch` -> answer, and how far it holds."""
    _settled: int = field(default=0, repr=False, compare=False)
    """Of the first epochs, so many, no validation is due any more."""

    def __post_init__(self) -> None:
        if not self.terms:
            self._agree()

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
        """A sub-epoch was committed."""
        sub_epoch = len(self.visits)
        if (self.begun[-1][1] if self.begun else 0) != self.given:
            self.begun.append((sub_epoch, self.given))
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
        """Begin where another model was after so many sub-epochs; to be called before anything else happens to it."""
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
        self.given = len(self.terms) - 1

    def extend(self, epochs: int) -> bool:
        """Have it trained for so many epochs in all, but not for fewer than it has begun; whether that changes it."""
        epochs = max(epochs, self.begun_epochs, 1)
        has_changed = epochs != self.epochs
        self.epochs = epochs
        if has_changed:
            self._agree()
        if not self.is_trained:
            has_changed |= self.move("Extended")
        return has_changed

    def change(self, hyperparams: Hyperparameters) -> bool:
        """Have the sub-epochs that have not begun trained with these instead; whether any differs."""
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
        """The newest sub-epoch is to be done again; see `may_take_back`."""
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
        """Keep the visits of the first epoch that it still has no longer, but for the last one and where it began, or
        `keeps_all` of them beside; those of them that are its own."""
        self.summaries.append(summary)
        epoch = len(self.summaries)
        first, until = self.visits.archived, self._ends[epoch - 1]
        gone = self.visits.archive(
            until, range(first, until) if keeps_all else (self.inherited - 1, until - 1)
        )
        self._means.pop(epoch, None)
        return gone[max(0, self.inherited - first) :]

    def validate(self, epoch: int, metrics: dict[str, float]) -> None:
        """The validation of an epoch was committed."""
        if epoch in self.validations:
            self._best.clear()
        self.validations[epoch] = metrics
        for asked, best in self._best.items():
            name, mode, validated = asked
            if validated and self.inherited_epochs < epoch <= best.through:
                self._best[asked] = self._better(best, epoch, name, mode, validated=True)

    def warn(self, warnings: Collection[str]) -> None:
        """Count the warnings of a committed sub-epoch; of many different ones the first are kept."""
        for text in warnings:
            if text in self.warnings or len(self.warnings) < _MOST_WARNINGS:
                self.warnings[text] += 1

    def try_validations_again(self) -> None:
        """Those that were given up may come."""
        self.unvalidated.clear()
        self._settled = 0

    def save(self, task: str, attempt: int, savepoint: Savepoint) -> None:
        """Its sub-epoch `task` can go on from here."""
        self.saved = Saved(task=task, attempt=attempt, savepoint=savepoint, terms=self.given)

    def savepoint_of(self, task: str) -> Savepoint | None:
        """Where its sub-epoch `task` goes on, if not at its beginning."""
        return self.saved.savepoint if self.saved is not None and self.saved.task == task else None

    # --- where it stands -------------------------------------------------------------------------

    @property
    def warning(self) -> str:
        """Warnings of its sub-epochs, joined to one text."""
        sub_epochs = self.own_sub_epochs
        found = [f"{text} (in {number} of {sub_epochs} sub-epochs)" for text, number in self.warnings.items()]
        return "; ".join(found)

    @property
    def kept_visits(self) -> list[Visit]:
        """Those of `visits` that are no other model's, and are not archived: of whole epochs, and the present one."""
        since = self.inherited - self.visits.archived
        return self.visits.kept[since:] if since > 0 else self.visits.kept

    @property
    def known_visits(self) -> Iterator[Visit]:
        """`kept_visits`, after those that are pinned (`Visits`): all whose checkpoints there may be."""
        yield from self.visits.pinned(self.inherited)
        yield from self.kept_visits

    @property
    def peaks(self) -> tuple[int, int]:
        """The most memory that a sub-epoch of it had, of its process and on GPUs, bytes; 0 where that is not known."""
        known = [self.summaries.peaks]
        known += [(visit.peak_bytes, visit.peak_gpu_bytes) for visit in self.visits.kept]
        return max((host for host, _ in known), default=0), max((gpu for _, gpu in known), default=0)

    @property
    def own_sub_epochs(self) -> int:
        """How many of `visits` are no other model's."""
        return len(self.visits) - self.inherited

    @property
    def own_visited(self) -> int:
        """Partitions that its own visits were to, added up over all epochs."""
        return self.visited - self._inherited

    @property
    def archived_epochs(self) -> int:
        """Epochs whose visits are archived, the first ones."""
        return bisect_right(self._ends, self.visits.archived) if self.visits.archived else 0

    @property
    def may_take_back(self) -> bool:
        """Whether its newest sub-epoch can be done again: not where it is archived, because what was before is not
        known."""
        return bool(self.visits.kept)

    @property
    def inherited_epochs(self) -> int:
        """Epochs that are complete within its inherited visits: the epoch at which it branched off."""
        return bisect_right(self._ends, self.inherited)

    @property
    def own_epochs(self) -> int:
        """Epochs that are complete, but for those of its inherited visits."""
        return len(self._ends) - self.inherited_epochs if self.inherited else len(self._ends)

    def terms_of(self, sub_epoch: int) -> Terms:
        """With which the sub-epoch of that number, from 0, was trained; of one that is not committed, with which it is
        assigned now, or would be."""
        if sub_epoch >= len(self.visits):
            return self.terms[self.given if self.busy and sub_epoch == len(self.visits) else -1]
        place = bisect_right(self.begun, (sub_epoch, len(self.terms)))
        return self.terms[self.begun[place - 1][1] if place else 0]

    def hyperparams_of(self, sub_epoch: int) -> Hyperparameters:
        """Those of `terms_of`."""
        return self.terms_of(sub_epoch).hyperparams

    def hyperparams_shown(self, epoch: int | None) -> Hyperparameters:
        """Hyper-parameters to show with the value of `epoch`, or else of its newest or first sub-epoch."""
        if len(self.terms) == 1 or not self.visits:
            return self.hyperparams
        sub_epoch = len(self.visits) - 1 if self.own_sub_epochs else len(self.visits)
        return self.hyperparams_at(epoch) if epoch else self.hyperparams_of(sub_epoch)

    def hyperparams_at(self, epoch: int) -> Hyperparameters:
        """With which the last sub-epoch of a complete epoch was trained."""
        return self.hyperparams_of(self.visits_until(epoch) - 1)

    def terms_for(self, task: str) -> int:
        """Number of the terms with which its sub-epoch of this key is to begin: those that it had, if it goes on from a
        savepoint, else the newest."""
        is_saved = self.saved is not None and self.saved.task == task
        return self.saved.terms if is_saved and self.saved else len(self.terms) - 1

    @property
    def is_outdated(self) -> bool:
        """Whether its open sub-epoch was given other hyper-parameters than it has now, and is to begin anew with
        these."""
        if self.busy is None or self.given == self.terms_for(self.busy):
            return False
        return not is_same(self.terms[self.given].hyperparams, self.hyperparams)

    @property
    def changes(self) -> list[tuple[int, Hyperparameters]]:
        """(sub-epoch, hyper-parameters): with which it was trained before the sub-epoch of that number, ascending; only
        where those after it differ."""
        sub_epochs = [*self.begun, (len(self.visits) + bool(self.busy), len(self.terms) - 1)]
        if self.busy:
            sub_epochs.insert(-1, (len(self.visits), self.given))
        found, before = [], 0
        for sub_epoch, number in sub_epochs:
            if sub_epoch and self.terms[before].hyperparams != self.terms[number].hyperparams:
                found.append((sub_epoch, self.terms[before].hyperparams))
            before = number
        return found

    @property
    def has_changed(self) -> bool:
        """Whether it ever had other hyper-parameters than it has now: what is measured of it, and of models that were
        like it when they were inspected, does not hold for each other."""
        return len(self.terms) > 1 and not all(
            is_same(each.hyperparams, self.hyperparams) for each in self.terms
        )

    @property
    def is_pruned(self) -> bool:
        """Whether its newest state was removed: it is trained no further, whatever a user asks for."""
        return bool(self.visits) and self.visits[-1].file in self.removed

    @property
    def is_cut_short(self) -> bool:
        """Whether it ended, or is stopped, before its last epoch: nothing more of it is due."""
        return self.state in CUT_SHORT

    @property
    def is_trained(self) -> bool:
        """Whether every sub-epoch of every epoch is committed."""
        return self.visited >= self.epochs * len(self.partitions)

    @property
    def is_between_epochs(self) -> bool:
        """Whether its newest sub-epoch was the last one of an epoch, or the very first."""
        return len(self.visits) <= 1 or not self.visited % len(self.partitions)

    @property
    def epoch(self) -> int:
        """The epoch its next sub-epoch belongs to, from 1; `epochs` once trained."""
        return min(self.completed_epochs + 1, self.epochs)

    @property
    def completed_epochs(self) -> int:
        """Epochs whose sub-epochs are all committed."""
        return self.visited // len(self.partitions)

    @property
    def begun_epochs(self) -> int:
        """Epochs that its grant cannot be smaller than: those that are complete, and the present one, of which a
        sub-epoch may have been assigned already."""
        return self.completed_epochs + (not self.is_trained)

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
        """The visit of a partition in an epoch, alone or in a set; `None` if there is none, or it is archived."""
        if epoch > self.completed_epochs and partition not in self._visited:
            return None
        if epoch in self.summaries:
            return None
        for visit in self.epoch_visits(epoch):
            if partition in visit.partitions:
                return visit
        return None

    def has_visited(self, epoch: int, partition: int) -> bool:
        """Whether it has visited a partition in an epoch."""
        return epoch <= self.completed_epochs or (epoch == self.epoch and partition in self._visited)

    def needs(self, epoch: int, partitions: Collection[int]) -> bool:
        """Whether a sub-epoch on this set may be its next: it has visited none of them in this epoch."""
        is_due = epoch == self.epoch and not self.is_trained and bool(partitions)
        return is_due and self._visited.isdisjoint(partitions) and set(partitions).issubset(self.partitions)

    def visits_until(self, epoch: int) -> int:
        """How many visits there are of epochs up to this one."""
        return self._ends[epoch - 1] if 0 < epoch <= len(self._ends) else len(self.visits) if epoch > 0 else 0

    def epochs_before(self, sub_epoch: int) -> int:
        """How many epochs were complete before the sub-epoch of that number, from 0."""
        return bisect_right(self._ends, sub_epoch)

    def epoch_visits(self, epoch: int) -> list[Visit]:
        """The visits of one epoch, in order.

        Raises:
            ArchivedError: they are archived; see `summaries`.
        """
        return self.visits[self.visits_until(epoch - 1) : self.visits_until(epoch)]

    def returned_in(self, epoch: int) -> dict[str, bool]:
        """Metrics of an epoch's visits so far, name -> whether it is a ratio: the first that has it says."""
        if epoch in self.summaries:
            return dict(self.summaries[epoch].returned)
        found: dict[str, bool] = {}
        for names, ratios in dict.fromkeys((visit.names, visit.ratios) for visit in self.epoch_visits(epoch)):
            found = {name: name in ratios for name in names} | found
        return found

    def partitions_until(self, sub_epoch: int) -> int:
        """Partitions that its first sub-epochs, so many, were to; the sub-epochs end an epoch, or are all."""
        epochs = self.epochs_before(sub_epoch)
        begun = self.visits[self._ends[epochs - 1] if epochs else 0 : sub_epoch]
        return epochs * len(self.partitions) + sum(len(visit.partitions) for visit in begun)

    def epoch_totals(self, epoch: int) -> EpochTotals:
        """Of all visits of an epoch, another model's among them."""
        return (
            self.summaries[epoch].totals if epoch in self.summaries else totals_of(self.epoch_visits(epoch))
        )

    def epoch_checkpoint(self, epoch: int) -> CheckpointRef | None:
        """The state at the end of an epoch, or `None` while it is not reached."""
        return self.visits[self._ends[epoch - 1] - 1].checkpoint if epoch <= self.completed_epochs else None

    def may_be_validated(self, epoch: int) -> bool:
        """Whether the validation of a completed epoch may still come."""
        return epoch not in self.validations and epoch not in self.unvalidated

    # --- how good it is --------------------------------------------------------------------------

    def training_metrics(self, epoch: int) -> dict[str, float]:
        """Of all visits of an epoch together: see `mean`."""
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
        """A metric of a completed epoch: from validation if the run validates, else from training; `None` if
        unknown.
        """
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
        """All metrics of a completed epoch, from where `metric` has its one."""
        return dict(self.validations.get(epoch, _NOTHING) if validated else self._mean(epoch))

    def scores(self, name: str, *, validated: bool) -> dict[int, float]:
        """`metric` of each epoch that has it, ascending."""
        found = {}
        for epoch in range(1, self.completed_epochs + 1):
            value = self.metric(name, epoch, validated=validated)
            if value is not None:
                found[epoch] = value
        return found

    def latest_epoch(self, name: str, *, validated: bool) -> int | None:
        """The newest epoch that has the metric; `None` while there is none."""
        for epoch in range(self.completed_epochs, 0, -1):
            if self.metric(name, epoch, validated=validated) is not None:
                return epoch
        return None

    def best_epoch(self, name: str, mode: str, *, validated: bool) -> int | None:
        """The epoch with the best metric, the earliest among equals, of those that it ended itself; `None` while there
        is none."""
        asked = (name, mode, validated)
        # Its parent has the epochs that it inherited, with their checkpoints.
        best = self._best.get(asked) or _Best(None, 0.0, self.inherited_epochs)
        if asked not in self._best or best.through < self.completed_epochs:
            for epoch in range(best.through + 1, self.completed_epochs + 1):
                best = self._better(best, epoch, name, mode, validated=validated)
            best = self._best[asked] = best._replace(through=self.completed_epochs)
        return best.epoch

    def _better(self, best: _Best, epoch: int, name: str, mode: str, *, validated: bool) -> _Best:
        value = self.metric(name, epoch, validated=validated)
        return best if value is None else best.beside(epoch, value if mode == "max" else -value)

    def _awaiting_validation(self) -> list[int]:
        """Complete epochs whose validation may still come."""
        while self._settled < self.completed_epochs and not self.may_be_validated(self._settled + 1):
            self._settled += 1
        return [
            epoch
            for epoch in range(self._settled + 1, self.completed_epochs + 1)
            if self.may_be_validated(epoch)
        ]

    def needed_checkpoints(self, name: str, mode: str, *, validated: bool) -> set[str]:
        """Names of checkpoints that must not be removed.

        The newest (the next sub-epoch's input), the one before (should the newest turn out corrupt, its sub-epoch is
        redone from there), ends of epochs whose validation is still due, and the best epoch's. Of another model's, only
        the one that it begins with.
        """
        newest = range(max(len(self.visits) - 2, self.inherited - 1, 0), len(self.visits))
        names = {self.visits[sub_epoch].file for sub_epoch in newest if self.visits.knows(sub_epoch)}
        waiting = self._awaiting_validation() if validated else []
        for epoch in {*waiting, self.best_epoch(name, mode, validated=validated) or 0}:
            if 0 < epoch <= self.completed_epochs:
                names.add(self.visits[self._ends[epoch - 1] - 1].file)
        return names
