"""State and transitions of a run, and the data sets of ETL runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from cerebro.contract.base import Split
from cerebro.contract.events import EpochCompleted
from cerebro.contract.parallel_plans import FUSED, SINGLE
from cerebro.contract.priority import NORMAL
from cerebro.contract.runs import (
    EtlPlan,
    EvaluateRequest,
    FitPlan,
    FitRequest,
    Plan,
    Request,
)
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.search.pareto import order
from cerebro.state.models.compaction import compact
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs import folds, repeats
from cerebro.state.runs.compared_values import point_of
from cerebro.state.runs.counts import RunCounts
from cerebro.state.runs.parts.clock import RunClock
from cerebro.state.runs.parts.device_time import DeviceTime
from cerebro.state.runs.parts.failures import Pause, RunFailures
from cerebro.state.runs.parts.retention import RunCheckpoints, RunCompaction
from cerebro.state.runs.parts.run_tasks import RunTasks
from cerebro.state.runs.parts.scheduling import RunScheduling
from cerebro.state.runs.parts.trials import RunTrials
from cerebro.state.runs.search_log import SearchLog
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import ENDED, Task, TaskState
from cerebro.state.tasks.verifications import Verification, Verifications
from cerebro.state.workers import Worker

DEFAULT_MAX_ATTEMPTS = 3


class RunState(StrEnum):
    """State of a run."""

    QUEUED = "queued"  # waits for another run or for its plan
    RUNNING = "running"  # tasks are assigned as workers become idle
    PAUSED = "paused"  # no new tasks; `Run.pause` says why
    STOPPING = "stopping"  # by a user; the controller revokes open attempts
    FINISHED = "finished"  # done
    FAILED = "failed"  # ended by an error: `RunFailures.error`
    STOPPED = "stopped"  # ended by a user


ENDED_RUN = frozenset({RunState.FINISHED, RunState.FAILED, RunState.STOPPED})
OPEN_RUN = frozenset(RunState) - ENDED_RUN

TRANSITIONS: dict[tuple[RunState, str], frozenset[RunState]] = {
    (RunState.QUEUED, "RunStarted"): frozenset({RunState.RUNNING}),
    (RunState.RUNNING, "RunPaused"): frozenset({RunState.PAUSED}),
    (RunState.QUEUED, "RunPaused"): frozenset(
        {RunState.PAUSED}
    ),  # its plan needs a volume that cannot be used
    (RunState.PAUSED, "RunResumed"): frozenset({RunState.RUNNING, RunState.QUEUED}),  # queued without a plan
    (RunState.QUEUED, "RunStopRequested"): frozenset({RunState.STOPPING}),
    (RunState.RUNNING, "RunStopRequested"): frozenset({RunState.STOPPING}),
    (RunState.PAUSED, "RunStopRequested"): frozenset({RunState.STOPPING}),
    # A user's stop command arrived while the controller planned or paused.
    (RunState.STOPPING, "RunStarted"): frozenset({RunState.STOPPING}),
    (RunState.STOPPING, "RunPaused"): frozenset({RunState.STOPPING}),
    # Reopened. Queued if it has no plan; a failed run only if no task was hopeless for all.
    (RunState.STOPPED, "RunResumed"): frozenset({RunState.RUNNING, RunState.QUEUED}),
    (RunState.STOPPED, "ModelResumed"): frozenset({RunState.RUNNING}),
    (RunState.STOPPED, "ModelRetried"): frozenset({RunState.RUNNING}),
    (RunState.FINISHED, "ModelResumed"): frozenset({RunState.RUNNING}),
    (RunState.FINISHED, "ModelRetried"): frozenset({RunState.RUNNING}),
    (RunState.FAILED, "ModelResumed"): frozenset({RunState.RUNNING}),
    (RunState.FAILED, "ModelRetried"): frozenset({RunState.RUNNING}),
    (RunState.STOPPED, "ModelExtended"): frozenset({RunState.RUNNING}),
    (RunState.FINISHED, "ModelExtended"): frozenset({RunState.RUNNING}),
    (RunState.FAILED, "ModelExtended"): frozenset({RunState.RUNNING}),
    (RunState.STOPPED, "ModelsAdded"): frozenset({RunState.RUNNING}),
    (RunState.FINISHED, "ModelsAdded"): frozenset({RunState.RUNNING}),
    (RunState.FAILED, "ModelsAdded"): frozenset({RunState.RUNNING}),
}
"""(state, event) -> allowed states. `RunFinished` leads from any open state to its outcome.

Anything else is illegal, except late user commands, which have no effect."""


@dataclass(kw_only=True)
class Dataset:
    """The output of an ETL run: rows of each committed partition."""

    id: str
    plan: EtlPlan
    rows: dict[tuple[Split, int], int] = field(default_factory=dict)
    failed_rows: dict[tuple[Split, int], int] = field(default_factory=dict)
    fitted: FittedRef | None = None
    """Return value of `ETLSpec.fit`; `None` before it, or without such a method."""
    was_fitted: bool = False
    """True once `fitted` is known."""

    def partitions(self, split: Split) -> dict[int, int]:
        """Return partition -> rows, without empty partitions."""
        parts = self.plan.splits.get(split, ())
        return {p.partition: rows for p in parts if (rows := self.rows.get((split, p.partition), 0)) > 0}


@dataclass(kw_only=True)
class Run:
    """One call of a run method."""

    id: str
    request: Request
    author: str = ""
    priority: int = NORMAL
    """Set by a user; the newest choice counts."""
    project: str = ""
    state: RunState = RunState.QUEUED
    plan: Plan | None = None
    models: dict[str, Model] = field(default_factory=dict)
    search: SearchLog | None = None
    """Search of this fit, once started."""
    tasks: RunTasks = field(default_factory=RunTasks)
    counts: RunCounts = field(default_factory=RunCounts)
    """Counts over the models and tasks."""
    verifications: Verifications = field(default_factory=Verifications)
    """Sub-epochs under verification."""
    clock: RunClock = field(default_factory=RunClock)
    device_time: DeviceTime = field(default_factory=DeviceTime)
    scheduling: RunScheduling = field(default_factory=RunScheduling)
    trials: RunTrials = field(default_factory=RunTrials)
    checkpoints: RunCheckpoints = field(default_factory=RunCheckpoints)
    compaction: RunCompaction = field(default_factory=RunCompaction)
    pause: Pause = field(default_factory=Pause)
    failures: RunFailures = field(default_factory=RunFailures)

    def __post_init__(self) -> None:
        if isinstance(self.request, FitRequest) and not self.scheduling.scheduler:
            self.scheduling.scheduler = self.request.scheduler
            self.scheduling.has_planner = self.request.planner

    @property
    def kind(self) -> str:
        """`etl`, `fit`, `test` or `predict`."""
        return self.request.kind

    @property
    def is_open(self) -> bool:
        """True if the run has not ended."""
        return self.state in OPEN_RUN

    @property
    def is_evaluation(self) -> bool:
        """True for tests and predictions, which change neither data nor models."""
        return isinstance(self.request, EvaluateRequest)

    @property
    def max_attempts(self) -> int:
        """Attempts for a task that crashes."""
        return self.request.max_attempts if isinstance(self.request, FitRequest) else DEFAULT_MAX_ATTEMPTS

    @property
    def fit_request(self) -> FitRequest:
        """The request of a fit run; other kinds have none."""
        assert isinstance(self.request, FitRequest)
        return self.request

    @property
    def chooses_stacks(self) -> bool:
        """True if the user named ``single`` and ``fused``: the measured times choose the plan."""
        named = self.request.techniques if isinstance(self.request, FitRequest) else None
        return {SINGLE.technique, FUSED} <= {each.name for each in named or () if each.code is None}

    @property
    def fit_rows(self) -> dict[int, int]:
        """Training partition -> rows, for a started fit run."""
        assert isinstance(self.plan, FitPlan)
        return self.plan.partitions

    @property
    def keep(self) -> int | None:
        """Number of best models that keep their checkpoints after training; `None`: all."""
        search_request = self.request.search if isinstance(self.request, FitRequest) else None
        return search_request.keep if search_request is not None and self.search is not None else None

    @property
    def is_planned_fit(self) -> bool:
        """True for a started fit; one with a search may have no models yet."""
        return isinstance(self.plan, FitPlan)

    @property
    def has_known_models(self) -> bool:
        """True if all models were known at the start and train to the end.

        Such a run can be planned, and its epochs compared across models."""
        return self.search is None and not self.scheduling.has_added

    @property
    def has_known_end(self) -> bool:
        """True if the remaining work is known; an open search or repeats may still add models and resources."""
        if not self.is_open or not isinstance(self.request, FitRequest):
            return True
        if self.request.repeats is not None and not any(model.is_repeat for model in self.models.values()):
            return False
        return self.request.search is None or (self.search is not None and self.search.finish is not None)

    def waits_at_rung(self, model: Model) -> bool:
        """True if a model has used its resource and awaits the search's decision."""
        return (
            self.search is not None
            and self.search.finish is None
            and model.state is ModelState.FINISHED
            and model.epochs < self.fit_request.epochs
            and model.id not in self.search.verdicts
        )

    @property
    def is_validated(self) -> bool:
        """True if models are validated after each epoch."""
        return isinstance(self.plan, FitPlan) and bool(self.plan.valid_partitions or self.plan.folds)

    def task(self, key: TaskKey) -> Task:
        """Return the task with this key; a new pending one if it was never assigned."""
        return self.tasks.by_key.get(str(key)) or self._unlisted(key)

    def find(self, key: str) -> Task:
        """Return the task for a key in text form.

        Raises:
            ValueError: the text is no key.
        """
        return self.tasks.by_key.get(key) or self._unlisted(TaskKey.parse(key))

    def _unlisted(self, key: TaskKey) -> Task:
        model = self.models.get(key.model or "") if key.kind == "train" else None
        sub_epoch = (
            model.sub_epoch(key.epoch or 0, -1 if key.partition is None else key.partition) if model else None
        )
        if sub_epoch is None and model is not None and (key.epoch or 0) in model.summaries:
            return Task(key=key, state=TaskState.COMMITTED)  # compacted: only the log has its attempts
        if sub_epoch is None or sub_epoch.partitions != key.partitions:
            return Task(key=key)
        return Task(key=key, state=TaskState.COMMITTED, attempts=[sub_epoch.as_attempt()])

    def validation_keys(self, model: Model, epoch: int) -> tuple[TaskKey, ...]:
        """Return the keys of a model's validation of an epoch: one, or one for each partition of its fold."""
        fold = model.lineage.fold
        key = TaskKey(run=self.id, kind="valid", model=model.id, epoch=epoch)
        if fold is None:
            return (key,)
        return tuple(key._replace(partition=partition) for partition in fold.partitions)

    def progress(self) -> tuple[int, int]:
        """Return (tasks committed, tasks in all); a sub-epoch on a set of partitions counts once for each.

        Missing work of failed and stopped models counts only if the whole run failed, or it would look complete.
        Inherited sub-epochs don't count. Without `has_known_end` the total covers the resources granted until now."""
        if not isinstance(self.plan, FitPlan) or not isinstance(self.request, FitRequest):
            tasks = self.tasks.requested()
            return sum(task.state is TaskState.COMMITTED for task in tasks), len(tasks)
        done = sum(model.own_trained for model in self.models.values())
        return done, done + sum(self.due(model) for model in self.models.values())

    def due(self, model: Model) -> int:
        """Return the partitions a model has left to train on, for `progress`."""
        is_due = self.state is RunState.FAILED or not model.is_cut_short
        return model.due if is_due else 0

    @property
    def zero(self) -> float:
        """Start of the makespan: when the first sub-epoch began its own work; infinite before.

        Running sub-epochs count from their start, since the end of process start is not known yet."""
        running = [
            task.attempts[-1].started
            for task in self.tasks.open.values()
            if task.key.kind == "train" and task.state is TaskState.RUNNING
        ]
        return min([self.clock.first_work, *running])

    # --- changes ---------------------------------------------------------------------------------

    def observe_model(self, model: Model) -> None:
        """Update the counts for a new or changed model."""
        if isinstance(self.request, FitRequest):
            self.counts.observe_model(model, is_validated=self.is_validated)

    def observe_task(self, key: str, task: Task, *, is_new: bool = False) -> None:
        """Update the counts for a new, assigned or ended task; call it once for each change."""
        if task.key.kind in (self.kind, "fitting"):
            self.counts.observe_task(key, task, is_new=is_new)

    def add(self, model: Model, sub_epoch: CompletedSubEpoch, workers: Mapping[str, Worker]) -> None:
        """Add a committed sub-epoch."""
        model.add(sub_epoch)
        self._count(sub_epoch)
        if model.id in self.checkpoints.young and model.own_sub_epochs > 1:
            self.release_parent_checkpoint(model)
        if self._is_large and not model.progress.trained % len(model.partitions):
            self._archive(model, workers)

    @property
    def _is_large(self) -> bool:
        return self.compaction.threshold is not None and self.counts.sub_epochs > self.compaction.threshold

    def _archive(self, model: Model, workers: Mapping[str, Worker]) -> None:
        epochs = model.completed_epochs - 1
        if self.has_known_models:
            # Idle time counts from the end of the newest reported epoch (`cerebro.state.reports.schedule_report`).
            # Runs without further reports are compacted anyway: `DeviceTime.compacted_s` has the sums per worker.
            while (
                epochs > 0
                and model.sub_epochs[model.sub_epochs_until(epochs) - 1].ended
                > self.scheduling.reported_until
            ):
                epochs -= 1
        since = max(self.clock.first_work, self.scheduling.reported_until)
        for sub_epoch in compact(model, epochs, self.fit_rows, keeps_all=self.compaction.keeps_all):
            self.compaction.until = max(self.compaction.until, sub_epoch.ended)
            self.device_time.compact(sub_epoch, workers, since=since)
        for verification in [*self.verifications.open()]:
            # Its place in training is no longer known (`cerebro.state.models.positions`).
            if verification.sub_epoch.model == model.id and verification.number < model.sub_epochs.compacted:
                self.verifications.drop(
                    verification.sub_epoch, "its epoch was compacted before a worker was free to do it again"
                )

    def observe_report(self, report: EpochCompleted, workers: Mapping[str, Worker]) -> None:
        """Record the report on an epoch that all active models have completed."""
        self.scheduling.add_report(report)
        if self._is_large:
            for model in self.models.values():  # some are ahead, some have ended
                self._archive(model, workers)

    def release_parent_checkpoint(self, young: Model) -> None:
        """Note that a model no longer reads its inherited checkpoint."""
        self.checkpoints.release_parent_checkpoint(young, self.models, is_pruned=self.keep is not None)

    def _count(self, sub_epoch: CompletedSubEpoch) -> None:
        self.counts.add_sub_epoch(sub_epoch)
        self.device_time.add(sub_epoch)
        self.clock.newest_commit = max(self.clock.newest_commit, sub_epoch.ended)
        ends = self.scheduling.epoch_ends
        ends[sub_epoch.epoch] = max(ends.get(sub_epoch.epoch, 0.0), sub_epoch.ended)

    def _discount(self, lost: CompletedSubEpoch) -> None:
        """Undo `_count` for a sub-epoch that its model has dropped."""
        self.counts.remove_sub_epoch(lost)
        self.device_time.remove(lost)
        self.clock.newest_commit = max(
            (model.sub_epochs[-1].ended for model in self.models.values() if model.own_sub_epochs),
            default=0.0,
        )
        self.scheduling.epoch_ends[lost.epoch] = max(self._newest_of(lost.epoch), default=0.0)

    def _newest_of(self, epoch: int) -> Iterator[float]:
        """End of each model's newest own sub-epoch of an epoch."""
        for model in self.models.values():
            until = model.sub_epochs_until(epoch)
            if until > max(model.sub_epochs_until(epoch - 1), model.lineage.sub_epochs):
                yield model.sub_epochs[until - 1].ended

    def roll_back(self, model: Model) -> None:
        """Undo a model's newest sub-epoch, because its checkpoint is lost."""
        lost = model.roll_back()
        key = lost.key(self.id, model.id)
        task = self.tasks.by_key.setdefault(
            str(key), Task(key=key, state=TaskState.COMMITTED, attempts=[lost.as_attempt()])
        )
        task.reopen()
        self.verifications.drop(key, "its checkpoint was lost, and the sub-epoch is done again")
        self._discount(lost)

    def settle(self, model: Model) -> None:
        """Mark a model finished once it is trained and all its validations have ended."""
        if model.state in (ModelState.FINISHED, ModelState.FAILED) or not model.is_trained:
            return
        missing = [
            e for e in range(1, model.epochs + 1) if self.is_validated and model.validation.may_come(e)
        ]
        keys = (key for epoch in missing for key in self.validation_keys(model, epoch))
        if all(self.task(key).state in ENDED for key in keys):
            model.move("LastTaskEnded")

    def kept_checkpoints(self, model: Model, *, but: Verification | None = None) -> set[str]:
        """Return the checkpoints of a model that no commit may remove.

        Includes starting points of other models and inputs of open verifications except `but`."""
        request = self.fit_request
        needed = model.needed_checkpoints(request.metric, request.mode, validated=self.is_validated)
        return (
            needed
            | {
                young.sub_epochs[young.lineage.sub_epochs - 1].checkpoint.name
                for young in self.checkpoints.young.values()
            }
            | self.verifications.needed(model.id, but=but)
        ) - model.checkpoints.removed

    def best_epoch(self, model: Model) -> int | None:
        """Return a model's best epoch by the fit's metric, if any."""
        request = self.fit_request
        return model.best_epoch(request.metric, request.mode, validated=self.is_validated)

    def best_models(self, count: int) -> list[Model]:
        """Return the `count` best models, best first; ties keep the models' order. See `cerebro.state.models.best`.

        Once all repeats have ended, repeated models come first, by the means of their repeats. In a cross-validation,
        the first model of each configuration stands for it, by the mean of the folds.
        """
        if not isinstance(self.request, FitRequest):
            return []
        sign, means = 1 if self.request.mode == "min" else -1, self.final_means()
        rest = (each for each in self.models.values() if each.is_listed and each.id not in means)
        repeated = [self.models[name] for name in sorted(means, key=lambda name: sign * means[name])]
        return [*repeated, *self._best_of(rest, count)][:count]

    def _best_of(self, models: Iterable[Model], count: int) -> list[Model]:
        """Return the `count` best of these models by their own values, best first."""
        request, is_validated = self.fit_request, self.is_validated
        sign = 1 if request.mode == "min" else -1
        known = [
            (sign * value, model)
            for model in models
            if (value := repeats.best_value(model, request, validated=is_validated)) is not None
        ]
        if request.is_multi_objective:
            points = [point_of(self, model, self.best_epoch(model) or 0) for _, model in known]
            return [known[place][1] for place in order(points)[:count]]
        return [model for _, model in heapq.nsmallest(count, known, key=itemgetter(0))]

    def final_means(self) -> dict[str, float]:
        """Return repeated model -> mean of its repeats' values, or first model of a configuration -> mean of its folds.

        Empty until all repeats of the run have ended, and with several objectives or constraints.
        """
        if self.fit_request.folds is not None:
            return folds.means(self.models.values(), self.fit_request)
        return repeats.final_means(self.models, self.fit_request, validated=self.is_validated)

    def due_repeats(self) -> list[Model]:
        """Return the models to repeat now, best first; none while other models train or may be added."""
        if self.kind != "fit" or self.counts.active:
            return []
        search = self.search
        if search is not None and search.finish is None:
            return []
        stopped = search.verdicts if search is not None else ()
        return repeats.due_models(
            self.models, self.fit_request, best_of=self._best_of, stopped_by_search=stopped
        )

    def best_model(self) -> Model | None:
        """Return the model with the best metric; `None` before, or if the run is no fit."""
        return next(iter(self.best_models(1)), None)

    def is_complete(self) -> bool:
        """True if nothing remains to assign or to wait for."""
        if self.tasks.open:
            return False
        if self.kind == "fit":
            has_ended = not self.counts.active and (self.search is None or self.search.finish is not None)
            return has_ended and not self.due_repeats()
        return not self.counts.unfinished
