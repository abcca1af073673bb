"""A run's state, its transitions, and the data sets that ETL runs make."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cerebro.contract.base import Split
from cerebro.contract.events import EpochCompleted, SchedulePlanned
from cerebro.contract.runs import EtlPlan, FitPlan, FitRequest, Plan, Request
from cerebro.contract.tasks import Failure
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model, ModelState
from cerebro.state.tasks import ENDED, Task, TaskState

DEFAULT_MAX_ATTEMPTS = 3


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"  # requested; another run is ahead, or it is being planned
    RUNNING = "running"  # tasks are assigned as workers become idle
    PAUSED = "paused"  # nothing new is assigned; `Run.reason` says why
    STOPPING = "stopping"  # a user asked to stop; open attempts are being taken back
    FINISHED = "finished"  # done
    FAILED = "failed"  # ended by an error: `Run.error`
    STOPPED = "stopped"  # ended by a user


ENDED_RUN = frozenset({RunState.FINISHED, RunState.FAILED, RunState.STOPPED})
OPEN_RUN = frozenset(RunState) - ENDED_RUN

TRANSITIONS: dict[tuple[RunState, str], RunState] = {
    (RunState.QUEUED, "RunStarted"): RunState.RUNNING,
    (RunState.RUNNING, "RunPaused"): RunState.PAUSED,
    (RunState.PAUSED, "RunResumed"): RunState.RUNNING,
    (RunState.QUEUED, "RunStopRequested"): RunState.STOPPING,
    (RunState.RUNNING, "RunStopRequested"): RunState.STOPPING,
    (RunState.PAUSED, "RunStopRequested"): RunState.STOPPING,
    # The controller planned, or paused, while a user's wish to stop was on its way.
    (RunState.STOPPING, "RunStarted"): RunState.STOPPING,
    (RunState.STOPPING, "RunPaused"): RunState.STOPPING,
}
"""(state, event) -> state. `RunFinished` leads from any open state to its outcome."""

WISHES = frozenset({"RunStopRequested", "RunResumed"})
"""Events that may come too late through nobody's fault; they are then without effect."""


@dataclass(kw_only=True)
class Dataset:
    """What an ETL run makes: per split and partition the worker that makes it and, once committed, its rows."""

    id: str
    plan: EtlPlan
    rows: dict[tuple[Split, int], int] = field(default_factory=dict)
    failed_rows: dict[tuple[Split, int], int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every partition of every split is committed."""
        return all(
            (split, p.partition) in self.rows for split, parts in self.plan.splits.items() for p in parts
        )

    def partitions(self, split: Split) -> dict[int, int]:
        """Partition -> rows, for partitions that have rows."""
        parts = self.plan.splits.get(split, ())
        return {p.partition: rows for p in parts if (rows := self.rows.get((split, p.partition), 0)) > 0}


@dataclass(kw_only=True)
class Run:
    """One call of a run method. Times are the store's clock in seconds, 0 while unknown."""

    id: str
    request: Request
    author: str = ""
    state: RunState = RunState.QUEUED
    plan: Plan | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    """Tasks that were ever assigned, and all tasks of ETL, test and prediction runs."""
    open: dict[str, Task] = field(default_factory=dict)
    """Those of `tasks` with an open attempt, in the order of assignment."""
    remade: dict[str, Task] = field(default_factory=dict)
    """Those of `tasks` that make a training partition once more on another worker, for a run that is no ETL."""
    models: dict[str, Model] = field(default_factory=dict)
    epochs: list[EpochCompleted] = field(default_factory=list)
    """How well each epoch was scheduled, once all models have trained it."""
    planned: SchedulePlanned | None = None
    """The newest plan, followed where it still applies."""
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    """Why it is paused."""
    needs_bytes: int = 0
    error: str = ""
    storage_full: Failure | None = None
    """Set when a checkpoint found no room, until the run is paused for it."""
    fatal: Failure | None = None
    """A failure that no other task could escape."""

    @property
    def kind(self) -> str:
        """`etl`, `fit`, `test` or `predict`."""
        return self.request.kind

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN_RUN

    @property
    def max_attempts(self) -> int:
        """Attempts a task gets when its process crashes."""
        return self.request.max_attempts if isinstance(self.request, FitRequest) else DEFAULT_MAX_ATTEMPTS

    @property
    def is_validated(self) -> bool:
        """Whether models are validated after each epoch."""
        return isinstance(self.plan, FitPlan) and bool(self.plan.valid_partitions)

    def open_tasks(self) -> list[Task]:
        """Tasks with an open attempt."""
        return list(self.open.values())

    def own_tasks(self) -> list[Task]:
        """All but those in `remade`, which nobody asked for."""
        return [task for key, task in self.tasks.items() if key not in self.remade]

    def task(self, key: TaskKey) -> Task:
        """The task of that key, made pending if it was never assigned."""
        return self.tasks.get(str(key)) or Task(key=key)

    def validation(self, model: Model, epoch: int) -> Task:
        """The validation of a model's epoch."""
        return self.task(TaskKey(run=self.id, kind="valid", model=model.id, epoch=epoch))

    def progress(self) -> tuple[int, int]:
        """(tasks committed, tasks in all). Units of failed models count as done: nothing more will come of them."""
        if not isinstance(self.plan, FitPlan):
            return sum(task.state in ENDED for task in self.own_tasks()), len(self.own_tasks())
        per_model = len(self.plan.partitions) * max((m.epochs for m in self.models.values()), default=0)
        done = sum(per_model if m.state is ModelState.FAILED else len(m.visits) for m in self.models.values())
        return done, per_model * len(self.models)

    def settle(self, model: Model) -> None:
        """Mark a model finished once it is trained and each of its epochs is validated, or cannot be."""
        if model.state is not ModelState.ACTIVE or not model.is_trained:
            return
        epochs = range(1, model.epochs + 1)
        if not self.is_validated or all(self.validation(model, e).state in ENDED for e in epochs):
            model.state = ModelState.FINISHED

    def best_model(self) -> Model | None:
        """The model with the best metric at its best epoch; `None` while there is none, or if this is no fit."""
        if not isinstance(self.request, FitRequest):
            return None
        name, mode = self.request.metric, self.request.mode
        sign = 1 if mode == "max" else -1
        scores: dict[str, float] = {}
        for model in self.models.values():
            epoch = model.best_epoch(name, mode, validated=self.is_validated)
            value = model.metric(name, epoch, validated=self.is_validated) if epoch else None
            if value is not None:
                scores[model.id] = sign * value
        return self.models[max(scores, key=lambda m: scores[m])] if scores else None

    def is_complete(self) -> bool:
        """Whether nothing is left to assign or to wait for."""
        if self.open_tasks():
            return False
        if self.kind == "fit":
            return all(model.state is not ModelState.ACTIVE for model in self.models.values())
        return all(task.state is TaskState.COMMITTED for task in self.own_tasks())
