"""State and transitions of a run, and the data sets of ETL runs."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from cerebro.contract.base import Split
from cerebro.contract.events import EpochCompleted, ForecastMade, SchedulePlanned
from cerebro.contract.priority import NORMAL
from cerebro.contract.runs import (
    EtlPlan,
    EvaluateRequest,
    FitPlan,
    FitRequest,
    Plan,
    Request,
    TakenSpan,
)
from cerebro.contract.tasks import Failure, FittedRef
from cerebro.contract.trials import Inspection, TrialOutcome
from cerebro.state.models.committed_sub_epoch import Visit
from cerebro.state.models.compaction import ARCHIVE_AFTER, archive
from cerebro.state.models.model import Model, ModelState
from cerebro.state.runs.counts import RunCounts
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
    PAUSED = "paused"  # no new tasks; `Run.reason` says why
    STOPPING = "stopping"  # by a user; the controller revokes open attempts
    FINISHED = "finished"  # done
    FAILED = "failed"  # ended by an error: `Run.error`
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

    @property
    def is_complete(self) -> bool:
        """True if every partition of every split is committed."""
        return all(
            (split, p.partition) in self.rows for split, parts in self.plan.splits.items() for p in parts
        )

    def partitions(self, split: Split) -> dict[int, int]:
        """Return partition -> rows, without empty partitions."""
        parts = self.plan.splits.get(split, ())
        return {p.partition: rows for p in parts if (rows := self.rows.get((split, p.partition), 0)) > 0}


@dataclass(kw_only=True)
class Run:
    """One call of a run method. Times are seconds of the store's clock, 0 if unknown."""

    id: str
    request: Request
    author: str = ""
    priority: int = NORMAL
    """Set by a user; the newest choice counts."""
    project: str = ""
    state: RunState = RunState.QUEUED
    plan: Plan | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    """Assigned tasks, and all tasks of ETL, test and prediction runs.

    A sub-epoch committed at its first attempt is only in its visit; `task` finds it too."""
    open: dict[str, Task] = field(default_factory=dict)
    """Tasks with an open attempt, in the order of assignment."""
    exhausted: set[str] = field(default_factory=set)
    """Keys of uncommitted tasks that ran out of memory."""
    remade: dict[str, Task] = field(default_factory=dict)
    """Tasks that make a replica of a training partition on another worker, outside ETL runs."""
    models: dict[str, Model] = field(default_factory=dict)
    search: SearchLog | None = None
    """Search of this fit, once started."""
    has_added: bool = False
    """True if models were added after the start."""
    young: dict[str, Model] = field(default_factory=dict)
    """Models with inherited weights and fewer than two own sub-epochs; they may reread the parent's checkpoint."""
    pruned: list[str] = field(default_factory=list)
    """Models that lost checkpoints since they last trained, in log order; may list a model twice."""
    epochs: list[EpochCompleted] = field(default_factory=list)
    """Scheduling report of each epoch that all models have trained."""
    scheduler: str = ""
    """Name of the policy that dispatches sub-epochs; only the dispatcher knows the valid names."""
    planner: bool = False
    """True if the run may follow a plan; a user's newest choice."""
    planned: SchedulePlanned | None = None
    """The newest plan, followed where it applies."""
    forecasts: list[ForecastMade] = field(default_factory=list)
    """Forecasts of the end, oldest first."""
    inspection: Inspection | None = None
    """Groups of alike models and the available parallel plans; `None` without a choice."""
    trials: dict[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    """(group id, parallel plan id) of `inspection` -> trial outcome of this or an earlier run."""
    verifications: Verifications = field(default_factory=Verifications)
    """Sub-epochs under verification."""
    has_recalled: bool = False
    """True once the log says which trials of earlier runs apply."""
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    breaks: list[tuple[float, float]] = field(default_factory=list)
    """(from, to) of breaks, ascending: the run had ended, or had no worker. See `cerebro.state.runs.breaks`."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(from, to) of pauses, ascending; `to` is infinite during one. Running tasks continue, so they are no breaks."""
    taken: dict[str, list[TakenSpan]] = field(default_factory=dict)
    """Worker -> spans of its devices in other runs; see `cerebro.state.runs.device_time`."""
    taken_until: float = 0.0
    """End of the time range that `taken` covers."""
    worked: float = 0.0
    """Time a worker last began or ended a task, or the run resumed."""
    reason: str = ""
    """Reason of the pause."""
    needs_bytes: int = 0
    full_volume: str = ""
    """Path of the volume that caused the pause."""
    volume_pauses: int = 0
    """Pauses for a volume since the last commit."""
    error: str = ""
    doubted: str = ""
    """Task repeated because user code raised an error that a broken device raises too.

    One at a time: no other task is repeated for this, unless another worker commits this one."""
    storage_full: Failure | None = None
    """Failure of a volume that pauses the run; kept until it resumes."""
    fatal: Failure | None = None
    """A failure that would end every task."""
    is_fresh: bool = True
    """True until the first assignment."""
    origin: float = math.inf
    """Start of the first sub-epoch; infinite before."""
    first_work: float = math.inf
    """Earliest time an ended sub-epoch began its work, after process start.

    Process start is unknown for failed attempts, so they count from their start."""
    trained_s: dict[str, float] = field(default_factory=dict)
    """Worker -> device-seconds of visits."""
    visits_at: Counter[str] = field(default_factory=Counter)
    """Worker -> number of visits."""
    ends: dict[int, float] = field(default_factory=dict)
    """Epoch -> end of its newest sub-epoch."""
    reported_until: float = 0.0
    """End of the newest sub-epoch in the last report of `epochs`."""
    archive_after: int | None = ARCHIVE_AFTER
    """Number of sub-epochs above which old ones are compacted (`cerebro.state.models.compaction`); `None`: never."""
    keeps_archived: bool = False
    """True if compacted sub-epochs stay available, for readers of the full log."""
    archived_until: float = 0.0
    """The state has every sub-epoch that ended later; 0 if nothing is compacted."""
    archived_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Worker -> (join time, device-seconds of compacted visits since then and `reported_until`)."""
    starts: list[tuple[str, float, float]] = field(default_factory=list)
    """(worker, from, to) of process starts before visits, once per device."""
    newest_commit: float = 0.0
    """End of the newest visit; 0 before the first."""
    counts: RunCounts = field(default_factory=RunCounts)
    """Counts over the models and tasks."""

    def __post_init__(self) -> None:
        if isinstance(self.request, FitRequest) and not self.scheduler:
            self.scheduler, self.planner = self.request.scheduler, self.request.planner

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
        return self.search is None and not self.has_added

    @property
    def has_known_end(self) -> bool:
        """True if the remaining work is known; an open search may still add models and resources."""
        is_searching = isinstance(self.request, FitRequest) and self.request.search is not None
        return not (is_searching and self.is_open and (self.search is None or self.search.finish is None))

    def elapsed_s(self, at: float) -> float:
        """Return the seconds from the start to `at`, without breaks."""
        return at - self.started - sum(until - since for since, until in self.breaks)

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
        return isinstance(self.plan, FitPlan) and bool(self.plan.valid_partitions)

    def open_tasks(self) -> list[Task]:
        """Return the tasks with an open attempt."""
        return list(self.open.values())

    def own_tasks(self) -> list[Task]:
        """Return `tasks` without `remade`, which no user requested."""
        return [task for key, task in self.tasks.items() if key not in self.remade]

    def task(self, key: TaskKey) -> Task:
        """Return the task with this key; a new pending one if it was never assigned."""
        return self.tasks.get(str(key)) or self._unlisted(key)

    def find(self, key: str) -> Task:
        """Return the task for a key in text form.

        Raises:
            ValueError: the text is no key.
        """
        return self.tasks.get(key) or self._unlisted(TaskKey.parse(key))

    def _unlisted(self, key: TaskKey) -> Task:
        model = self.models.get(key.model or "") if key.kind == "train" else None
        visit = model.visit(key.epoch or 0, -1 if key.partition is None else key.partition) if model else None
        if visit is None and model is not None and (key.epoch or 0) in model.summaries:
            return Task(key=key, state=TaskState.COMMITTED)  # compacted: only the log has its attempts
        if visit is None or visit.partitions != key.partitions:
            return Task(key=key)
        return Task(key=key, state=TaskState.COMMITTED, attempts=[visit.as_attempt()])

    def validation(self, model: Model, epoch: int) -> Task:
        """Return the validation task of a model's epoch."""
        return self.task(TaskKey(run=self.id, kind="valid", model=model.id, epoch=epoch))

    def progress(self) -> tuple[int, int]:
        """Return (tasks committed, tasks in all); a sub-epoch on a set of partitions counts once for each.

        Missing work of failed and stopped models counts only if the whole run failed, or it would look complete.
        Inherited sub-epochs don't count. Without `has_known_end` the total covers the resources granted until now."""
        if not isinstance(self.plan, FitPlan) or not isinstance(self.request, FitRequest):
            tasks = self.own_tasks()
            return sum(task.state is TaskState.COMMITTED for task in tasks), len(tasks)
        done = sum(model.own_visited for model in self.models.values())
        return done, done + sum(self.due(model) for model in self.models.values())

    def due(self, model: Model) -> int:
        """Return the partitions a model has left to visit, for `progress`."""
        is_due = self.state is RunState.FAILED or not model.is_cut_short
        return model.due if is_due else 0

    @property
    def zero(self) -> float:
        """Start of the makespan: when the first sub-epoch began its own work; infinite before.

        Running sub-epochs count from their start, since the end of process start is not known yet."""
        running = [
            task.attempts[-1].started
            for task in self.open.values()
            if task.key.kind == "train" and task.state is TaskState.RUNNING
        ]
        return min([self.first_work, *running])

    # --- changes ---------------------------------------------------------------------------------

    def see_model(self, model: Model) -> None:
        """Update the counts for a new or changed model."""
        if isinstance(self.request, FitRequest):
            self.counts.see_model(model, is_validated=self.is_validated)

    def see_task(self, key: str, task: Task, *, is_new: bool = False) -> None:
        """Update the counts for a new, assigned or ended task; call it once for each change."""
        if task.key.kind in (self.kind, "fitting"):
            self.counts.see_task(key, task, is_new=is_new)

    def add(self, model: Model, visit: Visit, workers: Mapping[str, Worker]) -> None:
        """Add a committed sub-epoch."""
        model.add(visit)
        self._count(visit)
        if model.id in self.young and model.own_sub_epochs > 1:
            self.release_origin(model)
        if self._is_large and not model.visited % len(model.partitions):
            self._archive(model, workers)

    @property
    def _is_large(self) -> bool:
        return self.archive_after is not None and self.counts.sub_epochs > self.archive_after

    def _archive(self, model: Model, workers: Mapping[str, Worker]) -> None:
        epochs = model.completed_epochs - 1
        if self.has_known_models:
            # Idle time counts from the end of the newest reported epoch (`cerebro.state.reports.schedule_report`).
            # Runs without further reports are compacted anyway: `archived_s` has the sums per worker.
            while epochs > 0 and model.visits[model.visits_until(epochs) - 1].ended > self.reported_until:
                epochs -= 1
        for visit in archive(model, epochs, self.fit_rows, keeps_all=self.keeps_archived):
            self.archived_until = max(self.archived_until, visit.ended)
            for worker, devices in visit.places:
                joined = workers[worker].joined if worker in workers else 0.0
                since, known = self.archived_s.get(worker, (joined, 0.0))
                begin = max(visit.started, joined, self.first_work, self.reported_until)
                spent = max(0.0, visit.ended - begin) * len(devices)
                self.archived_s[worker] = joined, spent + (known if since == joined else 0.0)
        for verification in [*self.verifications.open()]:
            # Its place in training is no longer known (`cerebro.state.models.positions`).
            if verification.sub_epoch.model == model.id and verification.number < model.visits.archived:
                self.verifications.drop(
                    verification.sub_epoch, "its epoch was archived before a worker was free to do it again"
                )

    def see_report(self, report: EpochCompleted, workers: Mapping[str, Worker]) -> None:
        """Record the report on an epoch that all active models have completed."""
        self.epochs.append(report)
        self.reported_until = max(
            (end for epoch, end in self.ends.items() if epoch <= report.epoch), default=0.0
        )
        if self._is_large:
            for model in self.models.values():  # some are ahead, some have ended
                self._archive(model, workers)

    def release_origin(self, young: Model) -> None:
        """Note that a model no longer reads its inherited checkpoint."""
        del self.young[young.id]
        owner = self.owner_of_origin(young)
        if self.keep is not None and owner.state is not ModelState.ACTIVE:
            self.pruned.append(owner.id)  # the owner makes no commit that would remove it

    def owner_of_origin(self, young: Model) -> Model:
        """Return the ancestor whose sub-epoch wrote the inherited checkpoint."""
        owner = self.models[young.parent]
        while young.inherited <= owner.inherited:
            owner = self.models[owner.parent]
        return owner

    def origins_of(self, owner: Model) -> Iterator[Visit]:
        """Return visits of `owner` that other models start from and may reread; some may be compacted."""
        for young in self.young.values():
            if self.owner_of_origin(young) is owner:
                yield young.visits[young.inherited - 1]

    def _count(self, visit: Visit) -> None:
        self.counts.sub_epochs += 1
        self.newest_commit = max(self.newest_commit, visit.ended)
        self.ends[visit.epoch] = max(self.ends.get(visit.epoch, 0.0), visit.ended)
        for worker, devices in visit.places:
            self.counts.sub_epoch_devices += len(devices)
            self.trained_s[worker] = self.trained_s.get(worker, 0.0) + visit.seconds * len(devices)
            self.visits_at[worker] += 1
            if visit.start_s:
                self.starts += [(worker, visit.started, visit.begun)] * len(devices)

    def _discount(self, lost: Visit) -> None:
        """Undo `_count` for a visit that its model has dropped."""
        self.counts.sub_epochs -= 1
        self.newest_commit = max(
            (model.visits[-1].ended for model in self.models.values() if model.own_sub_epochs), default=0.0
        )
        self.ends[lost.epoch] = max(self._newest_of(lost.epoch), default=0.0)
        for worker, devices in lost.places:
            self.counts.sub_epoch_devices -= len(devices)
            self.trained_s[worker] -= lost.seconds * len(devices)
            self.visits_at[worker] -= 1
            if not self.visits_at[worker]:
                del self.visits_at[worker], self.trained_s[worker]
            for _ in devices if lost.start_s else ():
                self.starts.remove((worker, lost.started, lost.begun))

    def _newest_of(self, epoch: int) -> Iterator[float]:
        """End of each model's newest own sub-epoch of an epoch."""
        for model in self.models.values():
            until = model.visits_until(epoch)
            if until > max(model.visits_until(epoch - 1), model.inherited):
                yield model.visits[until - 1].ended

    def take_back(self, model: Model) -> None:
        """Undo a model's newest sub-epoch, because its checkpoint is lost."""
        lost = model.take_back()
        key = lost.key(self.id, model.id)
        task = self.tasks.setdefault(
            str(key), Task(key=key, state=TaskState.COMMITTED, attempts=[lost.as_attempt()])
        )
        task.reopen()
        self.verifications.drop(key, "its checkpoint was lost, and the sub-epoch is done again")
        self._discount(lost)

    def settle(self, model: Model) -> None:
        """Mark a model finished once it is trained and all its validations have ended."""
        if model.state in (ModelState.FINISHED, ModelState.FAILED) or not model.is_trained:
            return
        missing = [e for e in range(1, model.epochs + 1) if self.is_validated and model.may_be_validated(e)]
        if all(self.validation(model, epoch).state in ENDED for epoch in missing):
            model.move("LastTaskEnded")

    def kept_checkpoints(self, model: Model, *, but: Verification | None = None) -> set[str]:
        """Return the checkpoints of a model that no commit may remove.

        Includes starting points of other models and inputs of open verifications except `but`."""
        request = self.fit_request
        needed = model.needed_checkpoints(request.metric, request.mode, validated=self.is_validated)
        return (
            needed
            | {young.visits[young.inherited - 1].file for young in self.young.values()}
            | self.verifications.needed(model.id, but=but)
        ) - model.removed

    def best_epoch(self, model: Model) -> int | None:
        """Return a model's best epoch by the fit's metric, if any."""
        request = self.fit_request
        return model.best_epoch(request.metric, request.mode, validated=self.is_validated)

    def best_models(self, count: int) -> list[Model]:
        """Return the `count` models with the best metrics, best first; ties keep the models' order."""
        if not isinstance(self.request, FitRequest):
            return []
        name, sign = self.request.metric, 1 if self.request.mode == "min" else -1
        is_validated = self.is_validated
        known = []
        for model in self.models.values():
            epoch = self.best_epoch(model)
            value = model.metric(name, epoch, validated=is_validated) if epoch else None
            if value is not None:
                known.append((sign * value, model))
        return [model for _, model in heapq.nsmallest(count, known, key=itemgetter(0))]

    def best_model(self) -> Model | None:
        """Return the model with the best metric; `None` before, or if the run is no fit."""
        return next(iter(self.best_models(1)), None)

    def is_complete(self) -> bool:
        """True if nothing remains to assign or to wait for."""
        if self.open_tasks():
            return False
        if self.kind == "fit":
            return not self.counts.active and (self.search is None or self.search.finish is not None)
        return not self.counts.unfinished
