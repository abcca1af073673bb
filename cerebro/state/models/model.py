"""A model of a fit run: completed sub-epochs, metrics and checkpoints to keep.

A sub-epoch trains on one partition or a set of partitions. Epoch and remaining partitions are derived from the
completed sub-epochs, so they cannot contradict them. Within an epoch the partitions of sub-epochs are disjoint, and no
sub-epoch crosses the end of an epoch: the number of trained partitions gives the number of completed epochs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import Failure
from cerebro.state.models.checkpoints import ModelCheckpoints, Saved
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.configs import ConfigVersions, TrainingConfig, is_same
from cerebro.state.models.failures import ModelFailures
from cerebro.state.models.progress import Effort, EpochProgress, Lineage
from cerebro.state.models.sub_epochs import (
    CompletedSubEpochs,
    EpochSummary,
    EpochTotals,
    Summaries,
    mean,
    totals_of,
)
from cerebro.state.models.validations import ModelValidation


class ModelState(StrEnum):
    """State of a model."""

    ACTIVE = "active"  # sub-epochs or validations remain
    STOPPED = "stopped"  # by a user; the controller revokes its running sub-epoch
    FINISHED = "finished"  # all epochs trained and validated
    FAILED = "failed"  # the run continues with the other models


CUT_SHORT = frozenset({ModelState.STOPPED, ModelState.FAILED})
"""States of models that train no further; its committed sub-epochs stay."""

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


_NOTHING: dict[str, float] = {}


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


@dataclass(slots=True)
class _MetricCache:
    """Metrics of a model that are expensive to compute."""

    means: dict[int, dict[str, float]] = field(default_factory=dict)
    """Epoch -> `training_metrics`, for complete epochs."""
    best: dict[tuple[str, str, bool], _Best] = field(default_factory=dict)
    """Arguments of `best_epoch` -> result."""


@dataclass(kw_only=True, slots=True)
class Model:
    """A training config and its progress. Only methods change `sub_epochs` and `validations`."""

    id: str
    hyperparams: Hyperparameters
    epochs: int
    """Resource: number of epochs the model may train in all."""
    partitions: tuple[int, ...]
    horizon: int = 0
    """Epochs for the learning-rate schedule, if more than `epochs`.

    A search sets the largest resource of any model, so the schedule does not restart at each rung."""
    priority: int = 0
    """Models with a higher priority go first."""
    tags: dict[str, str] = field(default_factory=dict)
    state: ModelState = ModelState.ACTIVE
    sub_epochs: CompletedSubEpochs = field(default_factory=CompletedSubEpochs)
    summaries: Summaries = field(default_factory=Summaries)
    """Sums of the first epochs, after their sub-epochs were compacted."""
    busy: str | None = None
    """Key of the open training sub-epoch. There is at most one: the isolation invariant."""
    returns: tuple[str, ...] = ()
    """Metric names from the first sub-epoch."""
    configs: ConfigVersions = field(default_factory=ConfigVersions)
    lineage: Lineage = field(default_factory=Lineage)
    progress: EpochProgress = field(default_factory=EpochProgress)
    effort: Effort = field(default_factory=Effort)
    validation: ModelValidation = field(default_factory=ModelValidation)
    checkpoints: ModelCheckpoints = field(default_factory=ModelCheckpoints)
    failures: ModelFailures = field(default_factory=ModelFailures)
    _metrics: _MetricCache = field(default_factory=_MetricCache, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.configs.versions:
            self._add_config()

    # --- changes ---------------------------------------------------------------------------------

    def move(self, event: str) -> bool:
        """Apply a transition of the table; return True if it exists."""
        target = TRANSITIONS.get((self.state, event))
        self.state = target or self.state
        return target is not None

    def give_up(self, failure: Failure) -> None:
        """Mark the model failed with the reason `failure`."""
        if self.move("GivenUp"):
            self.failures.final = failure

    def add(self, sub_epoch: CompletedSubEpoch) -> None:
        """Add a committed sub-epoch."""
        self.configs.commit(len(self.sub_epochs))
        self.checkpoints.saved = None
        self.sub_epochs.append(sub_epoch)
        if len(self.sub_epochs) == 1:
            self.returns = sub_epoch.returned.names
        self.effort.add(sub_epoch, is_first=self.own_sub_epochs == 1)
        trained = self.progress.trained
        self.progress.add(
            sub_epoch.partitions, num_partitions=len(self.partitions), sub_epochs=len(self.sub_epochs)
        )
        self._follow_changes(trained)

    def inherit(self, parent: Model, sub_epochs: int) -> None:
        """Start after the parent's first `sub_epochs` sub-epochs. Call it before any other change."""
        self.sub_epochs = parent.sub_epochs.until(sub_epochs)
        ends = [end for end in parent.progress.ends if end <= sub_epochs]
        self.summaries = parent.summaries.until(len(ends))
        begun = self.sub_epochs[ends[-1] if ends else 0 :]
        current = {partition for sub_epoch in begun for partition in sub_epoch.partitions}
        trained = len(ends) * len(self.partitions) + len(current)
        self.progress = EpochProgress(trained=trained, current=current, ends=ends)
        self.returns = parent.returns
        rows = sum(self.epoch_totals(epoch).rows for epoch in range(1, len(ends) + 1))
        self.lineage = Lineage(
            parent=self.lineage.parent,
            sub_epochs=sub_epochs,
            partitions=trained,
            rows=rows + sum(sub_epoch.rows for sub_epoch in begun),
        )
        self.configs.inherit(parent.configs, sub_epochs)

    def extend(self, epochs: int) -> bool:
        """Set the resource, at least the epochs already begun; return True if anything changes."""
        epochs = max(epochs, self.begun_epochs, 1)
        has_changed = epochs != self.epochs
        self.epochs = epochs
        if has_changed:
            self._add_config()
        if not self.is_trained:
            has_changed |= self.move("Extended")
        return has_changed

    def change(self, hyperparams: Hyperparameters) -> bool:
        """Change hyperparameters for sub-epochs that have not begun; return True if any differs."""
        changed = {**self.hyperparams, **hyperparams}
        if is_same(changed, self.hyperparams):
            return False
        self.hyperparams = changed
        self._add_config()
        return True

    def _add_config(self) -> None:
        self.configs.add(self.hyperparams, max(self.horizon, self.epochs))

    def _follow_changes(self, trained_before: int) -> None:
        """Change a repeat's hyperparameters where its parent's changed."""
        if changes := self.lineage.changes:
            starts = [start for start, _ in changes]
            now = bisect_right(starts, self.progress.trained)
            if now != bisect_right(starts, trained_before):
                self.hyperparams = changes[now - 1][1]
                self._add_config()

    def roll_back(self) -> CompletedSubEpoch:
        """Undo the newest sub-epoch. Check `can_roll_back` first."""
        self.checkpoints.saved = None
        was_only = self.own_sub_epochs == 1
        lost = self.sub_epochs.pop()
        self.checkpoints.undone.add((lost.epoch, lost.partitions))
        self.configs.undo(len(self.sub_epochs))
        trained = self.progress.trained
        self.progress.remove(lost.partitions, self.partitions)
        self._follow_changes(trained)
        if not self.sub_epochs:
            self.returns = ()
        self.effort.remove(lost, was_only=was_only)
        self.validation.unreadable.discard(lost.epoch)
        self._metrics.means.pop(lost.epoch, None)
        self._metrics.best.clear()
        return lost

    def compact(self, summary: EpochSummary, *, keeps_all: bool = False) -> list[CompletedSubEpoch]:
        """Replace the sub-epochs of the oldest remaining epoch by `summary`.

        Keeps the epoch's last sub-epoch and the starting point, or every sub-epoch if `keeps_all`.

        Returns:
            The model's own sub-epochs among the compacted ones.
        """
        self.summaries.append(summary)
        epoch = len(self.summaries)
        first, until = self.sub_epochs.compacted, self.progress.ends[epoch - 1]
        compacted = self.sub_epochs.compact(
            until, range(first, until) if keeps_all else (self.lineage.sub_epochs - 1, until - 1)
        )
        self._metrics.means.pop(epoch, None)
        return compacted[max(0, self.lineage.sub_epochs - first) :]

    def validate(self, epoch: int, metrics: dict[str, float]) -> None:
        """Record the committed validation of an epoch."""
        if epoch in self.validation.metrics:
            self._metrics.best.clear()
        self.validation.metrics[epoch] = metrics
        for criterion, best in self._metrics.best.items():
            name, mode, validated = criterion
            if validated and self.inherited_epochs < epoch <= best.through:
                self._metrics.best[criterion] = self._better(best, epoch, name, mode, validated=True)

    def save(self, task: str, attempt: int, savepoint: Savepoint) -> None:
        """Record the savepoint of sub-epoch `task`."""
        self.checkpoints.saved = Saved(
            task=task, attempt=attempt, savepoint=savepoint, version=self.configs.active
        )

    # --- progress --------------------------------------------------------------------------------

    @property
    def kept_sub_epochs(self) -> list[CompletedSubEpoch]:
        """The model's own sub-epochs that are not compacted."""
        since = self.lineage.sub_epochs - self.sub_epochs.compacted
        return self.sub_epochs.recent[since:] if since > 0 else self.sub_epochs.recent

    @property
    def known_sub_epochs(self) -> Iterator[CompletedSubEpoch]:
        """`kept_sub_epochs` after pinned ones (`CompletedSubEpochs`): every sub-epoch that may have a checkpoint."""
        yield from self.sub_epochs.pinned(self.lineage.sub_epochs)
        yield from self.kept_sub_epochs

    @property
    def peaks(self) -> tuple[int, int]:
        """Peak memory of a sub-epoch: process and GPU, in bytes; 0 if unknown. Stacks don't count."""
        known = [self.summaries.peaks]
        known += [each.own_peaks for each in self.sub_epochs.recent]
        return max((host for host, _ in known), default=0), max((gpu for _, gpu in known), default=0)

    @property
    def own_sub_epochs(self) -> int:
        """Number of sub-epochs that are not inherited."""
        return len(self.sub_epochs) - self.lineage.sub_epochs

    @property
    def own_trained(self) -> int:
        """Partitions of the model's own sub-epochs, summed over all epochs."""
        return self.progress.trained - self.lineage.partitions

    @property
    def compacted_epochs(self) -> int:
        """Number of leading epochs whose sub-epochs are compacted."""
        return bisect_right(self.progress.ends, self.sub_epochs.compacted) if self.sub_epochs.compacted else 0

    @property
    def can_roll_back(self) -> bool:
        """True if the newest sub-epoch can be undone; a compacted one cannot."""
        return bool(self.sub_epochs.recent)

    @property
    def inherited_epochs(self) -> int:
        """Complete inherited epochs: the epoch of the branch."""
        return bisect_right(self.progress.ends, self.lineage.sub_epochs)

    @property
    def own_epochs(self) -> int:
        """Completed epochs without inherited ones."""
        return (
            len(self.progress.ends) - self.inherited_epochs
            if self.lineage.sub_epochs
            else len(self.progress.ends)
        )

    def config_of(self, sub_epoch: int) -> TrainingConfig:
        """Return the training config of a sub-epoch, numbered from 0.

        For an uncommitted sub-epoch: the config of its open attempt, or else the newest."""
        if sub_epoch < len(self.sub_epochs):
            return self.configs.of(sub_epoch)
        is_open = self.busy and sub_epoch == len(self.sub_epochs)
        return self.configs.versions[self.configs.active if is_open else -1]

    def hyperparams_of(self, sub_epoch: int) -> Hyperparameters:
        """Return the hyperparameters of a sub-epoch; see `config_of`."""
        return self.config_of(sub_epoch).hyperparams

    def hyperparams_shown(self, epoch: int | None) -> Hyperparameters:
        """Return the hyperparameters to show for `epoch`; default: the newest sub-epoch."""
        if len(self.configs.versions) == 1 or not self.sub_epochs:
            return self.hyperparams
        sub_epoch = len(self.sub_epochs) - 1 if self.own_sub_epochs else len(self.sub_epochs)
        return self.hyperparams_at(epoch) if epoch else self.hyperparams_of(sub_epoch)

    def hyperparams_at(self, epoch: int) -> Hyperparameters:
        """Return the hyperparameters of a complete epoch's last sub-epoch."""
        return self.hyperparams_of(self.sub_epochs_until(epoch) - 1)

    def version_for(self, task: str) -> int:
        """Return the config version for sub-epoch `task`: the savepoint's, or else the newest."""
        saved = self.checkpoints.saved
        return saved.version if saved and saved.task == task else len(self.configs.versions) - 1

    @property
    def is_outdated(self) -> bool:
        """True if the open sub-epoch has old hyperparameters and must restart with the new ones."""
        if self.busy is None or self.configs.active == self.version_for(self.busy):
            return False
        return not is_same(self.configs.versions[self.configs.active].hyperparams, self.hyperparams)

    @property
    def is_repeat(self) -> bool:
        """True if it repeats another model with a new seed."""
        return self.lineage.seed is not None

    @property
    def is_listed(self) -> bool:
        """True unless another model stands for it in tables: it is a repeat, or a later fold of a configuration."""
        fold = self.lineage.fold
        return not self.is_repeat and (fold is None or fold.number == 1)

    def training_seed(self, run_seed: int) -> int:
        """Return the seed of its tasks: the run's, unless it is a repeat."""
        return run_seed if self.lineage.seed is None else self.lineage.seed

    @property
    def is_pruned(self) -> bool:
        """True if the newest checkpoint was removed: nothing can continue this model."""
        return bool(self.sub_epochs) and self.sub_epochs[-1].checkpoint.name in self.checkpoints.removed

    @property
    def is_cut_short(self) -> bool:
        """True if the model failed or was stopped: no further work is due."""
        return self.state in CUT_SHORT

    @property
    def is_trained(self) -> bool:
        """True if every sub-epoch of every epoch is committed."""
        return self.progress.trained >= self.epochs * len(self.partitions)

    @property
    def is_between_epochs(self) -> bool:
        """True after the last sub-epoch of an epoch, and after the very first one."""
        return len(self.sub_epochs) <= 1 or not self.progress.trained % len(self.partitions)

    @property
    def epoch(self) -> int:
        """Epoch of the next sub-epoch, from 1; `epochs` once trained."""
        return min(self.completed_epochs + 1, self.epochs)

    @property
    def completed_epochs(self) -> int:
        """Epochs with all sub-epochs committed."""
        return self.progress.trained // len(self.partitions)

    @property
    def begun_epochs(self) -> int:
        """Minimum for the resource: completed epochs and the current one, which may have an open sub-epoch."""
        return self.completed_epochs + (not self.is_trained)

    @property
    def remaining(self) -> tuple[int, ...]:
        """Partitions left in the current epoch, ascending; empty once trained."""
        if self.is_trained:
            return ()
        return tuple(p for p in self.partitions if p not in self.progress.current)

    @property
    def due(self) -> int:
        """Partitions left to train on, summed over all epochs."""
        return self.epochs * len(self.partitions) - self.progress.trained

    def sub_epoch(self, epoch: int, partition: int) -> CompletedSubEpoch | None:
        """Return the sub-epoch of a partition in an epoch; `None` if missing or compacted."""
        if epoch > self.completed_epochs and partition not in self.progress.current:
            return None
        if epoch in self.summaries:
            return None
        for sub_epoch in self.epoch_sub_epochs(epoch):
            if partition in sub_epoch.partitions:
                return sub_epoch
        return None

    def has_trained(self, epoch: int, partition: int) -> bool:
        """True if the model has trained on the partition in that epoch."""
        return epoch <= self.completed_epochs or (epoch == self.epoch and partition in self.progress.current)

    def needs(self, epoch: int, partitions: Collection[int]) -> bool:
        """True if the next sub-epoch may train on this set of partitions."""
        is_due = epoch == self.epoch and not self.is_trained and bool(partitions)
        return (
            is_due
            and self.progress.current.isdisjoint(partitions)
            and set(partitions).issubset(self.partitions)
        )

    def sub_epochs_until(self, epoch: int) -> int:
        """Return the number of sub-epochs up to the end of an epoch."""
        ends = self.progress.ends
        return ends[epoch - 1] if 0 < epoch <= len(ends) else len(self.sub_epochs) if epoch > 0 else 0

    def epoch_sub_epochs(self, epoch: int) -> list[CompletedSubEpoch]:
        """Return the sub-epochs of one epoch, in order.

        Raises:
            CompactedError: the sub-epochs are compacted; see `summaries`.
        """
        return self.sub_epochs[self.sub_epochs_until(epoch - 1) : self.sub_epochs_until(epoch)]

    def returned_in(self, epoch: int) -> dict[str, bool]:
        """Return name -> True if a ratio, for an epoch's metrics; the first sub-epoch with a name decides."""
        if epoch in self.summaries:
            return dict(self.summaries[epoch].returned)
        found: dict[str, bool] = {}
        for names, ratios in dict.fromkeys(
            (sub_epoch.returned.names, sub_epoch.returned.ratios)
            for sub_epoch in self.epoch_sub_epochs(epoch)
        ):
            found = {name: name in ratios for name in names} | found
        return found

    def partitions_until(self, sub_epoch: int) -> int:
        """Count the partitions of the first `sub_epoch` sub-epochs; these end an epoch, or are all."""
        epochs = self.progress.epochs_before(sub_epoch)
        begun = self.sub_epochs[self.progress.ends[epochs - 1] if epochs else 0 : sub_epoch]
        return epochs * len(self.partitions) + sum(len(completed.partitions) for completed in begun)

    def epoch_totals(self, epoch: int) -> EpochTotals:
        """Return the sums over an epoch's sub-epochs, inherited ones included."""
        return (
            self.summaries[epoch].totals
            if epoch in self.summaries
            else totals_of(self.epoch_sub_epochs(epoch))
        )

    def epoch_checkpoint(self, epoch: int) -> CheckpointRef | None:
        """Return an epoch's last checkpoint; `None` while the epoch is incomplete."""
        return (
            self.sub_epochs[self.progress.ends[epoch - 1] - 1].checkpoint.ref()
            if epoch <= self.completed_epochs
            else None
        )

    # --- metrics ---------------------------------------------------------------------------------

    def training_metrics(self, epoch: int) -> dict[str, float]:
        """Return the means over all sub-epochs of an epoch; see `mean`."""
        return dict(self._mean(epoch))

    def _mean(self, epoch: int) -> dict[str, float]:
        if epoch in self.summaries:
            return self.summaries[epoch].means
        means = self._metrics.means.get(epoch)
        if means is None:
            means = mean(self.epoch_sub_epochs(epoch))
            if 1 <= epoch <= self.completed_epochs:
                self._metrics.means[epoch] = means
        return means

    def metric(self, name: str, epoch: int, *, validated: bool) -> float | None:
        """Return a metric of a completed epoch, from validation if `validated`, else from training.

        `None` if unknown or not finite."""
        if epoch > self.completed_epochs:
            return None
        if validated:
            value = self.validation.metrics.get(epoch, _NOTHING).get(name)
        elif epoch in self.summaries:
            value = self.summaries.mean(epoch, name)
        else:
            value = self._mean(epoch).get(name)
        return value if value is not None and math.isfinite(value) else None

    def metrics(self, epoch: int, *, validated: bool) -> dict[str, float]:
        """Return all metrics of a completed epoch, from the same source as `metric`."""
        return dict(self.validation.metrics.get(epoch, _NOTHING) if validated else self._mean(epoch))

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
        best = self._metrics.best.get(criterion) or _Best(None, 0.0, self.inherited_epochs)
        if criterion not in self._metrics.best or best.through < self.completed_epochs:
            for epoch in range(best.through + 1, self.completed_epochs + 1):
                best = self._better(best, epoch, name, mode, validated=validated)
            best = self._metrics.best[criterion] = best._replace(through=self.completed_epochs)
        return best.epoch

    def _better(self, best: _Best, epoch: int, name: str, mode: str, *, validated: bool) -> _Best:
        value = self.metric(name, epoch, validated=validated)
        return best if value is None else best.pick_better(epoch, value if mode == "max" else -value)

    def needed_checkpoints(self, name: str, mode: str, *, validated: bool) -> set[str]:
        """Return the names of checkpoints that must not be removed.

        These are the newest (input of the next sub-epoch), its predecessor (to recompute a corrupt newest one), the
        ends of epochs that await validation, and the best epoch's. Among inherited ones: only the starting point.
        """
        newest = range(max(len(self.sub_epochs) - 2, self.lineage.sub_epochs - 1, 0), len(self.sub_epochs))
        names = {
            self.sub_epochs[sub_epoch].checkpoint.name
            for sub_epoch in newest
            if self.sub_epochs.knows(sub_epoch)
        }
        waiting = self.validation.awaited(self.completed_epochs) if validated else []
        for epoch in {*waiting, self.best_epoch(name, mode, validated=validated) or 0}:
            if 0 < epoch <= self.completed_epochs:
                names.add(self.sub_epochs[self.progress.ends[epoch - 1] - 1].checkpoint.name)
        return names
