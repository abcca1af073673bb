"""A run's state, its transitions, and the data sets that ETL runs make."""

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
from cerebro.state.archive import ARCHIVE_AFTER, archive
from cerebro.state.audits import Audit, Audits
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model, ModelState
from cerebro.state.run_counts import RunCounts
from cerebro.state.search import SearchLog
from cerebro.state.tasks import ENDED, Task, TaskState
from cerebro.state.visits import Visit
from cerebro.state.workers import Worker

DEFAULT_MAX_ATTEMPTS = 3


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"  # requested; it waits for another run, or is being planned
    RUNNING = "running"  # tasks are assigned as workers become idle
    PAUSED = "paused"  # nothing new is assigned; `Run.reason` says why
    STOPPING = "stopping"  # a user asked to stop; open attempts are being taken back
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
    ),  # a volume that its plan needs cannot be used
    (RunState.PAUSED, "RunResumed"): frozenset({RunState.RUNNING, RunState.QUEUED}),  # queued without a plan
    (RunState.QUEUED, "RunStopRequested"): frozenset({RunState.STOPPING}),
    (RunState.RUNNING, "RunStopRequested"): frozenset({RunState.STOPPING}),
    (RunState.PAUSED, "RunStopRequested"): frozenset({RunState.STOPPING}),
    # The controller planned, or paused, while a user's command to stop was on its way.
    (RunState.STOPPING, "RunStarted"): frozenset({RunState.STOPPING}),
    (RunState.STOPPING, "RunPaused"): frozenset({RunState.STOPPING}),
    # Open again. Queued, if it was stopped before it had a plan; a failed one only if no task was hopeless for all.
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
"""(state, event) -> states it may lead to. `RunFinished` leads from any open state to its outcome. Anything else is
illegal, but for a command of a user that came too late: that has no effect."""


@dataclass(kw_only=True)
class Dataset:
    """What an ETL run makes: per split and partition the worker that makes it and, once committed, its rows."""

    id: str
    plan: EtlPlan
    rows: dict[tuple[Split, int], int] = field(default_factory=dict)
    failed_rows: dict[tuple[Split, int], int] = field(default_factory=dict)
    fitted: FittedRef | None = None
    """What `ETLSpec.fit` returned; `None` before it has, and where the spec has no such method."""
    was_fitted: bool = False
    """Whether that is known."""

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
    priority: int = NORMAL
    """The newest choice of a user."""
    project: str = ""
    state: RunState = RunState.QUEUED
    plan: Plan | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    """Tasks that were ever assigned, and all tasks of ETL, test and prediction runs; but a sub-epoch that was committed
    at its first attempt is left to its visit. `task` finds those as well."""
    open: dict[str, Task] = field(default_factory=dict)
    """Those of `tasks` with an open attempt, in the order of assignment."""
    exhausted: set[str] = field(default_factory=set)
    """Keys of its tasks that ran out of memory and are not committed since."""
    remade: dict[str, Task] = field(default_factory=dict)
    """Those of `tasks` that make a training partition once more on another worker, for a run that is no ETL."""
    models: dict[str, Model] = field(default_factory=dict)
    search: SearchLog | None = None
    """Of a fit that searches, once it has started."""
    has_added: bool = False
    """Whether models were added after it had started."""
    young: dict[str, Model] = field(default_factory=dict)
    """Models with another one's weights that have committed fewer than two sub-epochs of their own: they may still have
    to read its checkpoint."""
    pruned: list[str] = field(default_factory=list)
    """Models that have lost checkpoints since they were trained last, in the order of the log; one may be there
    twice."""
    epochs: list[EpochCompleted] = field(default_factory=list)
    """How well each epoch was scheduled, once all models have trained it."""
    scheduler: str = ""
    """Policy that dispatches a fit's sub-epochs, as last chosen: any text, for only who dispatches knows them."""
    planner: bool = False
    """Whether the run may follow a plan; the newest choice of a user."""
    planned: SchedulePlanned | None = None
    """The newest plan, followed where it still applies."""
    forecasts: list[ForecastMade] = field(default_factory=list)
    """When it was expected to end, oldest first."""
    inspection: Inspection | None = None
    """Which of its models are alike, and the ways that there are; `None`: nobody has looked, because there was no
    choice."""
    trials: dict[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    """(group, way), as ids in `inspection` -> what a trial has shown, of this run or an earlier one."""
    audits: Audits = field(default_factory=Audits)
    """Sub-epochs that are done once more, by another worker, and compared."""
    has_recalled: bool = False
    """Whether it is told which trials of earlier runs hold for it."""
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    breaks: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it stood still, ascending: it had ended, until a user resumed it or one of its models; or no
    worker of it was there. See `cerebro.state.breaks`."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was paused, ascending; infinity: it is. What ran then went on, so these are no breaks."""
    taken: dict[str, list[TakenSpan]] = field(default_factory=dict)
    """Worker -> when others had devices of it; see `cerebro.state.taken`."""
    taken_until: float = 0.0
    """What others had before is told."""
    worked: float = 0.0
    """When a worker last began or ended a task of it, or it last went on after a break."""
    reason: str = ""
    """Why it is paused."""
    needs_bytes: int = 0
    full_volume: str = ""
    """Path on the volume that caused the pause."""
    volume_pauses: int = 0
    """Pauses for a volume since a worker last committed a task."""
    error: str = ""
    doubted: str = ""
    """Task in which user code raised what a broken device raises, too, and that was done once more for that. It is one
    at a time: it was the code's, and nobody need find that out again, unless another worker did it."""
    storage_full: Failure | None = None
    """The failure of a volume that makes the run pause; kept until the run resumes."""
    fatal: Failure | None = None
    """A failure that no other task could escape."""
    is_fresh: bool = True
    """Nothing of it was ever assigned."""
    origin: float = math.inf
    """When its first sub-epoch started; infinite before."""
    first_work: float = math.inf
    """When the first of its sub-epochs that have ended began its own work: by then its process had started. Of one that
    came to nothing it is not known how long its process took, so it counts from its start."""
    trained_s: dict[str, float] = field(default_factory=dict)
    """Worker -> device-seconds of visits there."""
    visits_at: Counter[str] = field(default_factory=Counter)
    """Worker -> how many visits were there."""
    ends: dict[int, float] = field(default_factory=dict)
    """Epoch -> when the newest of its sub-epochs ended."""
    reported_until: float = 0.0
    """When the newest of the sub-epochs ended that the newest of `epochs` is of."""
    archive_after: int | None = ARCHIVE_AFTER
    """With more sub-epochs than that, older ones are archived (`cerebro.state.archive`); `None`: none ever are."""
    keeps_archived: bool = False
    """Whether those are kept beside: by who reads them all."""
    archived_until: float = 0.0
    """All sub-epochs that ended later are in the fold; 0: all are."""
    archived_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Worker -> (when it had joined, device-seconds since then of archived visits, with the start of their processes),
    as far as they were after `reported_until`."""
    starts: list[tuple[str, float, float]] = field(default_factory=list)
    """(worker, from, to): when visits waited for their process to start, for each device that they had."""
    newest_commit: float = 0.0
    """When its newest visit ended; 0 before the first."""
    counts: RunCounts = field(default_factory=RunCounts)
    """Counts over its models and tasks."""

    def __post_init__(self) -> None:
        if isinstance(self.request, FitRequest) and not self.scheduler:
            self.scheduler, self.planner = self.request.scheduler, self.request.planner

    @property
    def kind(self) -> str:
        """`etl`, `fit`, `test` or `predict`."""
        return self.request.kind

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN_RUN

    @property
    def is_evaluation(self) -> bool:
        """Whether it tests or predicts: it changes neither data nor models."""
        return isinstance(self.request, EvaluateRequest)

    @property
    def max_attempts(self) -> int:
        """Attempts a task gets when its process crashes."""
        return self.request.max_attempts if isinstance(self.request, FitRequest) else DEFAULT_MAX_ATTEMPTS

    @property
    def fit_request(self) -> FitRequest:
        """What was asked of a fit run; only such a run has one."""
        assert isinstance(self.request, FitRequest)
        return self.request

    @property
    def fit_rows(self) -> dict[int, int]:
        """Training partition -> its rows, of a fit run that has started."""
        assert isinstance(self.plan, FitPlan)
        return self.plan.partitions

    @property
    def keep(self) -> int | None:
        """So many of its best models keep their checkpoints when they are trained no further; `None`: all."""
        asked = self.request.search if isinstance(self.request, FitRequest) else None
        return asked.keep if asked is not None and self.search is not None else None

    @property
    def is_planned_fit(self) -> bool:
        """Whether it is a fit that has started; one that searches may have no model yet."""
        return isinstance(self.plan, FitPlan)

    @property
    def has_known_models(self) -> bool:
        """Whether all its models were there from the beginning, and all are trained to the end: it can be planned, and
        the epochs of all models compared."""
        return self.search is None and not self.has_added

    @property
    def has_known_end(self) -> bool:
        """Whether what is left of it is known: while a search is not over it may add models and extend grants."""
        is_searching = isinstance(self.request, FitRequest) and self.request.search is not None
        return not (is_searching and self.is_open and (self.search is None or self.search.finish is None))

    def elapsed_s(self, at: float) -> float:
        """Seconds from its start to a time, without its breaks until now."""
        return at - self.started - sum(until - since for since, until in self.breaks)

    def waits_at_rung(self, model: Model) -> bool:
        """Whether a model has used up its grant and the search has yet to decide whether it goes on."""
        return (
            self.search is not None
            and self.search.finish is None
            and model.state is ModelState.FINISHED
            and model.epochs < self.fit_request.epochs
            and model.id not in self.search.verdicts
        )

    @property
    def is_validated(self) -> bool:
        """Whether models are validated after each epoch."""
        return isinstance(self.plan, FitPlan) and bool(self.plan.valid_partitions)

    def open_tasks(self) -> list[Task]:
        """Tasks with an open attempt."""
        return list(self.open.values())

    def own_tasks(self) -> list[Task]:
        """Those of `tasks` that are not in `remade`, which nobody asked for."""
        return [task for key, task in self.tasks.items() if key not in self.remade]

    def task(self, key: TaskKey) -> Task:
        """The task of that key, made pending if it was never assigned."""
        return self.tasks.get(str(key)) or self._unlisted(key)

    def find(self, key: str) -> Task:
        """`task` of a key as text.

        Raises:
            ValueError: it is none.
        """
        return self.tasks.get(key) or self._unlisted(TaskKey.parse(key))

    def _unlisted(self, key: TaskKey) -> Task:
        model = self.models.get(key.model or "") if key.kind == "train" else None
        visit = model.visit(key.epoch or 0, -1 if key.partition is None else key.partition) if model else None
        if visit is None and model is not None and (key.epoch or 0) in model.summaries:
            return Task(key=key, state=TaskState.COMMITTED)  # archived: its attempts are in the log alone
        if visit is None or visit.partitions != key.partitions:
            return Task(key=key)
        return Task(key=key, state=TaskState.COMMITTED, attempts=[visit.as_attempt()])

    def validation(self, model: Model, epoch: int) -> Task:
        """The validation of a model's epoch."""
        return self.task(TaskKey(run=self.id, kind="valid", model=model.id, epoch=epoch))

    def progress(self) -> tuple[int, int]:
        """(tasks committed, tasks in all), where a sub-epoch on a set of partitions counts once for each. What models
        that failed or were stopped lack is not due, so it counts as neither; but in a run that failed as a whole all
        counts, or it would look complete. Sub-epochs that a model has from another one are that one's. Without
        `has_known_end` all is what models were granted so far."""
        if not isinstance(self.plan, FitPlan) or not isinstance(self.request, FitRequest):
            tasks = self.own_tasks()
            return sum(task.state is TaskState.COMMITTED for task in tasks), len(tasks)
        done = sum(model.own_visited for model in self.models.values())
        return done, done + sum(self.due(model) for model in self.models.values())

    def due(self, model: Model) -> int:
        """Visits to a partition that a model has left to do, for `progress`."""
        is_due = self.state is RunState.FAILED or not model.is_cut_short
        return model.due if is_due else 0

    @property
    def zero(self) -> float:
        """Where its makespan begins: when the first sub-epoch's own work began. Of sub-epochs that run it is not known
        yet when that was, so they count from their start. Infinite before the first."""
        running = [
            task.attempts[-1].started
            for task in self.open.values()
            if task.key.kind == "train" and task.state is TaskState.RUNNING
        ]
        return min([self.first_work, *running])

    # --- what changes it -------------------------------------------------------------------------

    def see_model(self, model: Model) -> None:
        """One of its models is new or has changed."""
        if isinstance(self.request, FitRequest):
            self.counts.see_model(model, is_validated=self.is_validated)

    def see_task(self, key: str, task: Task, *, is_new: bool = False) -> None:
        """One of its tasks is new, was assigned or has ended; each to be told once."""
        if task.key.kind in (self.kind, "fitting"):
            self.counts.see_task(key, task, is_new=is_new)

    def add(self, model: Model, visit: Visit, workers: Mapping[str, Worker]) -> None:
        """A sub-epoch was committed."""
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
            # Idle time is counted from the end of the newest epoch that is reported (`cerebro.state.report`). What a
            # run reports no more of is archived all the same: the times that workers had are added up.
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
        for audit in [*self.audits.open()]:
            # Where it was in the training is not known any more (`cerebro.state.positions`).
            if audit.sub_epoch.model == model.id and audit.number < model.visits.archived:
                self.audits.drop(
                    audit.sub_epoch, "its epoch was archived before a worker was free to do it again"
                )

    def see_report(self, report: EpochCompleted, workers: Mapping[str, Worker]) -> None:
        """An epoch of all models that go on is over."""
        self.epochs.append(report)
        self.reported_until = max(
            (end for epoch, end in self.ends.items() if epoch <= report.epoch), default=0.0
        )
        if self._is_large:
            for model in self.models.values():  # those that are ahead, and those that ended meanwhile
                self._archive(model, workers)

    def release_origin(self, young: Model) -> None:
        """It reads the checkpoint that it began with no more."""
        del self.young[young.id]
        owner = self.owner_of_origin(young)
        if self.keep is not None and owner.state is not ModelState.ACTIVE:
            self.pruned.append(owner.id)  # no commit of its own removes it

    def owner_of_origin(self, young: Model) -> Model:
        """Whose sub-epoch wrote the checkpoint that it began with: its parent, or what that goes on from."""
        owner = self.models[young.parent]
        while young.inherited <= owner.inherited:
            owner = self.models[owner.parent]
        return owner

    def origins_of(self, owner: Model) -> Iterator[Visit]:
        """Visits of a model that others begin with, and may still have to read; some may be archived in it."""
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
        """The other way round; its model has it no more."""
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
        """When the newest sub-epoch of an epoch ended, of each model with one of its own."""
        for model in self.models.values():
            until = model.visits_until(epoch)
            if until > max(model.visits_until(epoch - 1), model.inherited):
                yield model.visits[until - 1].ended

    def take_back(self, model: Model) -> None:
        """The newest sub-epoch of a model is to be done again, because its checkpoint is lost."""
        lost = model.take_back()
        key = lost.key(self.id, model.id)
        task = self.tasks.setdefault(
            str(key), Task(key=key, state=TaskState.COMMITTED, attempts=[lost.as_attempt()])
        )
        task.reopen()
        self.audits.drop(key, "its checkpoint was lost, and the sub-epoch is done again")
        self._discount(lost)

    def settle(self, model: Model) -> None:
        """Mark a model finished once it is trained and each of its epochs is validated, or cannot be."""
        if model.state in (ModelState.FINISHED, ModelState.FAILED) or not model.is_trained:
            return
        missing = [e for e in range(1, model.epochs + 1) if self.is_validated and model.may_be_validated(e)]
        if all(self.validation(model, epoch).state in ENDED for epoch in missing):
            model.move("LastTaskEnded")

    def kept_checkpoints(self, model: Model, *, but: Audit | None = None) -> set[str]:
        """Names of a model's checkpoints that are there: those that it needs, those that others begin with, and those
        that audits read, other ones than `but`; without what was removed all the same. No commit may remove them."""
        request = self.fit_request
        needed = model.needed_checkpoints(request.metric, request.mode, validated=self.is_validated)
        return (
            needed
            | {young.visits[young.inherited - 1].file for young in self.young.values()}
            | self.audits.needed(model.id, but=but)
        ) - model.removed

    def best_epoch(self, model: Model) -> int | None:
        """A model's best epoch by the metric of this fit; `None` while there is none."""
        request = self.fit_request
        return model.best_epoch(request.metric, request.mode, validated=self.is_validated)

    def best_models(self, count: int) -> list[Model]:
        """So many models with the best metrics, each at its best epoch, the best first; of equals the first ones."""
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
        """The model with the best metric at its best epoch; `None` while there is none, or if this is no fit."""
        return next(iter(self.best_models(1)), None)

    def is_complete(self) -> bool:
        """Whether nothing is left to assign or to wait for."""
        if self.open_tasks():
            return False
        if self.kind == "fit":
            return not self.counts.active and (self.search is None or self.search.finish is not None)
        return not self.counts.unfinished
