"""The fold of an experiment's log: `ExperimentState.apply` for each kind of event.

The log as it is read has the cluster's events in it. What they tell of workers is of use while a run is open; what
happens in the cluster later changes nothing of a run that has ended, and is taken in when the next one is open.

`apply` checks first and changes afterwards, so an illegal event raises and leaves the state as it was. Where the fold
itself fails in the middle of an event, the state is torn: it takes nothing in any more (`cerebro.state.repair`). What
users ask for is in `cerebro.state.commands`, what happens to tasks in `attempts`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from cerebro.contract.events import (
    CheckpointsPruned,
    ClientEvent,
    ClusterEvent,
    DeletionRequested,
    DevicesTaken,
    EpochCompleted,
    Event,
    ExperimentArchived,
    ForecastMade,
    LocatorsChanged,
    ModelChanged,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    ModelStopRequested,
    ParallelPlansRuledOut,
    PriorityChanged,
    ReplicasChanged,
    RunCommand,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulePlanned,
    SchedulerChanged,
    SearchDecided,
    SearchStopRequested,
    SubEpochSaved,
    TaskAsked,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskGivenUp,
    TaskRevoked,
    TaskStarted,
    TrialsRecalled,
    ValuesDrawn,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.runs import EtlPlan, EtlRequest, FitRequest
from cerebro.errors import IllegalEventError
from cerebro.search.procedure import SEARCH
from cerebro.state import (
    additions,
    attempts,
    beside,
    breaks,
    commands,
    measured,
    parallel_plans,
    plans,
    pruning,
    taken,
    workers,
)
from cerebro.state.archive import ARCHIVE_AFTER
from cerebro.state.commands import CommandRecord, Reopening
from cerebro.state.keys import TaskKey
from cerebro.state.runs import Dataset, Run, RunState
from cerebro.state.search import SearchLog
from cerebro.state.search_reports import report_command, report_models
from cerebro.state.tasks import TaskEvent
from cerebro.state.workers import Worker, WorkerChange


@dataclass(kw_only=True)
class ExperimentState:
    """Everything the log of one experiment says."""

    name: str
    seq: int = 0
    """Of the newest event applied."""
    runs: dict[str, Run] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    """As they are; while no run is open, as they were when the last one ended."""
    worker_changes: list[WorkerChange] = field(default_factory=list)
    """Which workers came and went since the first run was requested. Of what happened while no run was open only the
    outcome is here, once a run is open again."""
    unseen: dict[str, Worker] | None = None
    """As they are by now, where something has happened to them since then."""
    datasets: dict[str, Dataset] = field(default_factory=dict)
    commands: list[CommandRecord] = field(default_factory=list)
    """Who asked for what, oldest first: every event that a client may append."""
    is_archived: bool = False
    deletion: DeletionRequested | None = None
    """Set once a user wants the experiment gone; nothing is begun from then on."""
    archive_after: int | None = field(default_factory=lambda: ARCHIVE_AFTER)
    """As `Run.archive_after`, of its runs."""
    keeps_archived: bool = False
    """As `Run.keeps_archived`, of its runs."""
    torn: str = ""
    """Why the event after `seq` was perhaps applied in part; empty for a state that can be relied on."""

    def etl_request(self, dataset: str) -> EtlRequest | None:
        """What the newest ETL run of a data set was asked for."""
        made = [r for r in self.runs.values() if isinstance(r.plan, EtlPlan) and r.plan.dataset == dataset]
        requests = [run.request for run in made if isinstance(run.request, EtlRequest)]
        return requests[-1] if requests else None

    def open_runs(self) -> list[Run]:
        """Runs that have not ended, oldest first."""
        return [run for run in self.runs.values() if run.is_open]

    def active_run(self) -> Run | None:
        """The open run that says most of the experiment: the oldest ETL or fit run, else the oldest one."""
        return min(self.open_runs(), key=lambda run: run.is_evaluation, default=None)

    def going_on(self) -> list[Run]:
        """Open runs that wait for no other one, oldest first (`cerebro.state.beside`)."""
        return beside.going_on(self.runs)

    def newest_dataset(self) -> Dataset | None:
        """The data set of the newest finished ETL run."""
        finished = [r for r in self.runs.values() if r.kind == "etl" and r.state is RunState.FINISHED]
        plans = [run.plan for run in finished if isinstance(run.plan, EtlPlan)]
        return self.datasets.get(plans[-1].dataset) if plans else None

    def holders(self, dataset: str, partition: int) -> list[Worker]:
        """Workers, alive or not, that hold a training partition."""
        return [w for w in self.workers.values() if (dataset, partition) in w.replicas]

    # --- the fold --------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event in.

        Raises:
            IllegalEventError: the event does not fit; the state is unchanged, unless it is `torn`.
            MemoryError, KeyboardInterrupt: nothing is wrong with the event; the state is torn.
        """
        if self.torn:
            raise IllegalEventError(self.torn)
        if event.seq and event.seq != self.seq + 1:
            raise IllegalEventError(f"event {event.seq} of {self.name!r} follows event {self.seq}")
        try:
            self._apply(event)
            self.seq += 1
        except IllegalEventError:
            raise
        except BaseException as cause:
            self.torn = f"{event.type} does not fit: {type(cause).__name__}: {cause}"
            if isinstance(cause, MemoryError) or not isinstance(cause, Exception):
                raise
            # A log is data: a name that is no key, a field that nobody wrote yet. It is this event that does not fit.
            raise IllegalEventError(self.torn) from cause

    def _apply(self, event: Event) -> None:
        match event:
            # First, because they are many, and to see that an event is of another type takes a while.
            case (
                TaskAssigned()
                | TaskStarted()
                | TaskCommitted()
                | TaskFailed()
                | TaskRevoked()
                | SubEpochSaved()
                | TaskAsked()
            ):
                run = self._run(event.task.partition("/")[0])
                attempts.apply(event, run, self.workers, self.datasets)
                self._tell_search(run, event)
            case TaskGivenUp():
                run = self._run(event.task.partition("/")[0])
                attempts.give_up(event, run)
                self._tell_search(run, event)
            case (
                RunRequested()
                | RunStopRequested()
                | RunResumed()
                | ModelStopRequested()
                | ModelResumed()
                | ModelRetried()
                | SchedulerChanged()
                | PriorityChanged()
                | ModelsAdded()
                | ModelExtended()
                | ModelChanged()
                | SearchStopRequested()
                | ExperimentArchived()
                | LocatorsChanged()
                | DeletionRequested()
            ):
                before = self._before(event)
                had_effect = self._ask(event)
                if self.unseen is not None and self.open_runs():
                    self._catch_up(self.unseen)
                added: tuple[str, ...] = ()
                if isinstance(event, ModelsAdded) and had_effect:
                    added = tuple(self.runs[event.run].models)[-len(event.models) :]
                self.commands.append(
                    commands.command_record(
                        event, self.seq + 1, is_late=not had_effect, added=added, before=before
                    )
                )
            case RunStarted():
                run = self._move(event)
                if run.plan is None:
                    run.started, run.volume_pauses = event.time, 0
                    plans.begin(self.datasets, self.holders, run, event.plan)
                    if isinstance(run.request, FitRequest) and run.request.search is not None:
                        run.search = SearchLog(first_workers=self._training(), workers=self._training())
                        for model in run.models.values():
                            run.search.see_added(model, by=SEARCH)
            case RunPaused():
                run = self._move(event)
                run.reason, run.needs_bytes = event.reason, event.needs_bytes
                run.full_volume = event.volume
                run.volume_pauses += bool(event.volume)
            case RunFinished():
                self._finish(event)
            case (
                EpochCompleted()
                | SchedulePlanned()
                | ForecastMade()
                | DevicesTaken()
                | ParallelPlansRuledOut()
                | TrialsRecalled()
                | SearchDecided()
                | ValuesDrawn()
                | CheckpointsPruned()
            ):
                self._note(event)
            case WorkerJoined() | WorkerLost() | WorkerRemoved() | ReplicasChanged():
                self._see(event)
            case _:
                assert_never(event)

    # --- runs ------------------------------------------------------------------------------------

    def _ask(self, event: ClientEvent) -> bool:
        """Do what a user asked for; whether that had any effect."""
        match event:
            case RunRequested():
                self._request(event)
            case ExperimentArchived():
                self.is_archived = event.is_archived
            case LocatorsChanged():
                pass  # what the locators are is in the experiment's record
            case DeletionRequested():
                self._delete(event)
            case _:
                run = self._run(event.run)
                may = run.is_open or self._may_be_reopened(run, event)
                if isinstance(event, ModelExtended):
                    may = may and beside.reader(self.runs, run, event.model) is None
                has_effect = may and commands.steer(run, event)
                if has_effect and run.search is not None:
                    report_command(run.search, run, event)
                return has_effect
        return True

    def _before(self, event: ClientEvent) -> str:
        """What it is about to change in a model, in words."""
        run = self.runs.get(getattr(event, "run", ""))
        model = run.models.get(getattr(event, "model", "")) if run else None
        return commands.before(event, model) if model else ""

    def _may_be_reopened(self, run: Run, event: RunCommand) -> bool:
        if self.deletion is not None:
            return False
        if isinstance(event, RunResumed) and pruning.lost_text(self.runs, run):
            return False
        if isinstance(event, Reopening) and event.beside:
            return beside.obstacle(self.runs, run) is None
        return not self.open_runs()

    def _request(self, event: RunRequested) -> None:
        if self.deletion is not None:
            raise IllegalEventError(
                f"run {event.run!r} was requested of {self.name!r}, which is being deleted"
            )
        if event.run in self.runs:
            raise IllegalEventError(f"run {event.run!r} was requested already")
        self.runs[event.run] = Run(
            id=event.run,
            request=event.request,
            author=event.author,
            priority=event.priority,
            project=event.project,
            requested=event.time,
            archive_after=self.archive_after,
            keeps_archived=self.keeps_archived,
        )

    def _delete(self, event: DeletionRequested) -> None:
        for run in self.open_runs():
            raise IllegalEventError(f"{self.name!r} is to be deleted while {run.id} is {run.state}")
        self.deletion = self.deletion or event

    def _move(self, event: RunStarted | RunPaused) -> Run:
        run = self._run(event.run)
        if not commands.move(run, event):
            raise IllegalEventError(f"{event.type} of {run.id} while it is {run.state}")
        return run

    def _run(self, name: str) -> Run:
        if name not in self.runs:
            raise IllegalEventError(f"no run {name!r} in experiment {self.name!r}")
        return self.runs[name]

    def _finish(self, event: RunFinished) -> None:
        run = self._run(event.run)
        if not run.is_open:
            raise IllegalEventError(f"RunFinished of {run.id} while it is {run.state}")
        if run.open_tasks():
            raise IllegalEventError(f"RunFinished of {run.id} while tasks are open")
        run.state, run.error, run.ended = RunState(event.outcome), event.error, event.time
        run.audits.end()

    def _note(
        self,
        event: EpochCompleted
        | SchedulePlanned
        | ForecastMade
        | DevicesTaken
        | ParallelPlansRuledOut
        | TrialsRecalled
        | SearchDecided
        | ValuesDrawn
        | CheckpointsPruned,
    ) -> None:
        run = self._run(event.run)
        if not run.is_open or run.kind != "fit":
            raise IllegalEventError(f"{event.type} of {run.id}, a {run.kind} run that is {run.state}")
        if isinstance(event, SchedulePlanned):
            run.planned = event
        elif isinstance(event, ForecastMade):
            run.forecasts.append(event)
        elif isinstance(event, DevicesTaken):
            taken.add_taken(run, event)
        elif isinstance(event, ParallelPlansRuledOut):
            parallel_plans.strike_all(event, run)
        elif isinstance(event, TrialsRecalled):
            measured.recall(event, run)
        elif isinstance(event, SearchDecided | ValuesDrawn):
            self._search(event, run)
        elif isinstance(event, CheckpointsPruned):
            pruning.prune(self.runs, run, event)
        elif event.epoch != len(run.epochs) + 1:
            raise IllegalEventError(
                f"epoch {event.epoch} of {run.id} completed after {len(run.epochs)} epochs"
            )
        else:
            run.see_report(event, self.workers)

    # --- searches --------------------------------------------------------------------------------

    def _search(self, event: SearchDecided | ValuesDrawn, run: Run) -> None:
        if run.search is None:
            raise IllegalEventError(f"{event.type} of {run.id}, which searches nothing")
        if isinstance(event, SearchDecided):
            additions.decide(run, event)
        else:
            run.search.draw(event, since_s=run.elapsed_s(event.time))

    def _tell_search(self, run: Run, event: TaskEvent | TaskGivenUp) -> None:
        if run.search is None or isinstance(event, TaskAssigned | TaskStarted | SubEpochSaved | TaskAsked):
            return
        model = TaskKey.parse(event.task).model
        if model is not None:
            report_models(run.search, run, (run.models[model],), time=event.time, by=SEARCH)

    def _training(self) -> int:
        """Workers that are there and train."""
        return sum(worker.is_alive and worker.trains for worker in self.workers.values())

    # --- workers ---------------------------------------------------------------------------------

    def _see(self, event: ClusterEvent) -> None:
        """Plans were made for the workers there were, and for what they held; perhaps a break is over."""
        open_runs = self.open_runs()
        if self.runs and not open_runs:
            unseen = copy.deepcopy(self.workers) if self.unseen is None else self.unseen
            workers.apply(unseen, event)
            if isinstance(event, WorkerRemoved) and event.worker not in self.workers:
                del unseen[event.worker]
            self.unseen = unseen
            return
        concerned = [run for run in open_runs if self._is_of_interest(event, run)]
        name = "" if isinstance(event, ReplicasChanged) else event.worker
        was_there = name in self.workers and self.workers[name].is_alive
        workers.apply(self.workers, event)
        if not self.runs:
            # What was before its first run is no matter of the experiment's.
            if isinstance(event, WorkerRemoved):
                del self.workers[event.worker]
            elif isinstance(event, WorkerJoined):
                self.workers[event.worker].most_devices = event.devices
        elif name:
            self._note_change(self.workers[name], was_there=was_there)
        for run in concerned:
            run.planned = None
            breaks.end(run, self.workers.values())
        self._tell_workers(open_runs)

    def _tell_workers(self, runs: Iterable[Run]) -> None:
        """Searches ask how many models to train at a time."""
        for run in runs:
            if run.search is not None:
                run.search.see_workers(self._training())

    def _note_change(self, worker: Worker, *, was_there: bool) -> None:
        if worker.is_alive != was_there:
            self.worker_changes.append(WorkerChange(worker.name, worker.since, worker.is_alive, worker.lost))

    def _is_of_interest(self, event: ClusterEvent, run: Run) -> bool:
        """Whether it changes where the run could be trained. What a volume holds, its own tasks may have told."""
        match event:
            case WorkerJoined():
                return "train" in event.kinds
            case WorkerLost():
                known = self.workers.get(event.worker)
                return known is not None and known.trains
            case WorkerRemoved():
                return False
        held = {pair for w in workers.on_volume(self.workers, event.volume) for pair in w.replicas}
        gained = {(each.dataset, each.partition) for each in event.gained} - held
        lost = {(each.dataset, each.partition) for each in event.lost} & held
        return run.plan is not None and any(dataset == run.plan.dataset for dataset, _ in gained | lost)

    def _catch_up(self, unseen: dict[str, Worker]) -> None:
        """A run is open again: the workers are those that there are now."""
        before, self.workers, self.unseen = self.workers, unseen, None
        for worker in self.workers.values():
            known = before.get(worker.name)
            worker.most_devices = max(worker.devices, known.most_devices if known else 1)
            self._note_change(worker, was_there=known is not None and known.is_alive)
        for run in self.open_runs():
            run.planned = None
        self._tell_workers(self.open_runs())


def fold(
    name: str, events: tuple[Event, ...] | list[Event], *, keeps_archived: bool = False
) -> ExperimentState:
    """The state after all of `events`; `keeps_archived` as there."""
    state = ExperimentState(name=name, keeps_archived=keeps_archived)
    for event in events:
        state.apply(event)
    return state
