"""Counts over a run's models and tasks, so that decisions need no pass over them.

All counts follow from the models and tasks; code that changes one must report it here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.tasks.failures import FailureKind
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model, ModelState
from cerebro.state.tasks.task import Task, TaskState


class Mixed(NamedTuple):
    """A metric that is a ratio on one partition and a number on another."""

    model: str | None
    metric: str
    ratio: int
    number: int


@dataclass(kw_only=True, slots=True)
class RunCounts:
    """Counters over the models and tasks of one run."""

    active: int = 0
    """Models with sub-epochs or validations left."""
    reached: Counter[int] = field(default_factory=Counter)
    """Completed epochs -> number of models, without failed and stopped ones."""
    unvalidated: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Active model -> its completed epochs without validation, ascending."""
    struck: int = 0
    """Ruled-out parallel plans, summed over all models."""
    overflowed: set[str] = field(default_factory=set)
    """Models with a parallel plan ruled out for lack of memory."""
    pending: OrderedDict[str, Task] = field(default_factory=OrderedDict)
    """Own tasks to assign, except in fits: returned ones first (newest first), then the rest in order."""
    unfinished: int = 0
    """Uncommitted own tasks, except in fits."""
    mixed: Mixed | None = None
    """First contradiction that prevents merging a model's results."""
    committed: int = 0
    """Commits of own tasks, repeated ones included, except in fits."""
    committed_s: float = 0.0
    """Seconds of these commits."""
    sub_epochs: int = 0
    """CompletedSubEpochs of a fit."""
    sub_epoch_devices: int = 0
    """Devices of the sub-epochs, summed."""
    device_uses: float = 0.0
    """`sub_epoch_devices`, but the sub-epochs of a fused group use their devices once."""
    _validated: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Model in `unvalidated` -> (completed epochs, validations) when last counted."""
    _struck: dict[str, int] = field(default_factory=dict)
    """Model -> counted ruled-out plans, if any."""
    _kinds: dict[str | None, dict[str, tuple[bool, int]]] = field(default_factory=dict)
    """Model -> metric -> (True if a ratio, first partition with it)."""
    _counted: dict[str, tuple[int, bool, int | None]] = field(default_factory=dict)
    """Model -> counted values: position, activity, completed epochs."""

    def observe_model(self, model: Model, *, is_validated: bool) -> None:
        """Update the counts for a new or changed model.

        Args:
            is_validated: True if its run validates models.
        """
        place, was_active, previous_epochs = self._counted.get(model.id, (len(self._counted), False, None))
        is_active = model.state is ModelState.ACTIVE
        completed = model.completed_epochs
        now = None if model.is_cut_short else completed
        self._counted[model.id] = (place, is_active, now)
        self.active += is_active - was_active
        if now != previous_epochs:
            if previous_epochs is not None:
                self.reached[previous_epochs] -= 1
                if not self.reached[previous_epochs]:
                    del self.reached[previous_epochs]
            if now is not None:
                self.reached[now] += 1
        self._see_validations(model, completed if is_validated and is_active else 0)
        if model.failures.ruled_out or model.id in self._struck:
            self._see_parallel_plans(model)

    def _see_parallel_plans(self, model: Model) -> None:
        count = len(model.failures.ruled_out)
        self.struck += count - self._struck.pop(model.id, 0)
        if count:
            self._struck[model.id] = count
        is_over = any(each.kind is FailureKind.OUT_OF_MEMORY for each in model.failures.ruled_out.values())
        (self.overflowed.add if is_over else self.overflowed.discard)(model.id)

    def _see_validations(self, model: Model, completed: int) -> None:
        if len(model.validation.metrics) >= completed:
            self.unvalidated.pop(model.id, None)
            self._validated.pop(model.id, None)
            return
        known = completed, len(model.validation.metrics)
        if self._validated.get(model.id) != known:
            # Sub-epochs are far more frequent than ends and validations of epochs.
            self._validated[model.id] = known
            epochs = range(1, completed + 1)
            self.unvalidated[model.id] = tuple(e for e in epochs if e not in model.validation.metrics)

    def add_sub_epoch(self, sub_epoch: CompletedSubEpoch) -> None:
        """Count a committed sub-epoch."""
        devices = sum(len(devices) for _, devices in sub_epoch.places)
        self.sub_epochs += 1
        self.sub_epoch_devices += devices
        self.device_uses += devices / sub_epoch.group.size

    def remove_sub_epoch(self, lost: CompletedSubEpoch) -> None:
        """Undo `add_sub_epoch`."""
        devices = sum(len(devices) for _, devices in lost.places)
        self.sub_epochs -= 1
        self.sub_epoch_devices -= devices
        self.device_uses = self.device_uses - devices / lost.group.size if self.sub_epochs else 0.0

    def in_order(self, models: Collection[str]) -> list[str]:
        """Return the models in the order of the run."""
        return sorted(models, key=lambda name: self._counted[name][0])

    def observe_task(self, key: str, task: Task, *, is_new: bool = False) -> None:
        """Count a new, assigned or ended own task; call it once for each change."""
        self.unfinished += is_new - (task.state is TaskState.COMMITTED)
        if task.state is TaskState.COMMITTED and task.attempts:
            self.committed += 1
            self.committed_s += task.attempts[-1].ended - task.attempts[-1].started
            self._see_metrics(task)
        if task.state is TaskState.PENDING:
            self.pending[key] = task
            self.pending.move_to_end(key, last=is_new)
        else:
            self.pending.pop(key, None)

    def _see_metrics(self, task: Task) -> None:
        if task.result is None or self.mixed is not None:
            return
        known, partition = self._kinds.setdefault(task.key.model, {}), task.key.partition or 0
        for name, is_ratio in task.result.part.kinds.items():
            was_ratio, where = known.setdefault(name, (is_ratio, partition))
            if was_ratio != is_ratio:
                ratio, number = (partition, where) if is_ratio else (where, partition)
                self.mixed = Mixed(task.key.model, name, ratio, number)
                return
