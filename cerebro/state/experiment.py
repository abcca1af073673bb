"""The fold of an experiment's log: `ExperimentState.apply` handles each kind of event.

The log that readers see includes the cluster's events. They change the workers only while a run is open; later ones
wait in `unseen` until the next run opens.

`apply` checks before it changes anything, so an illegal event raises and leaves the state unchanged. If the fold itself
fails within an event, the state is torn and accepts no further events (`cerebro.state.repair`). User commands are in
`cerebro.state.runs.commands`, task events in `attempts`.
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
    ModelsRepeated,
    ModelStopRequested,
    ParallelPlansRuledOut,
    PreemptionRequested,
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
    TagsChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskGivenUp,
    TaskRevoked,
    TaskStarted,
    TrialsRecalled,
    ValuesSuggested,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.runs import EtlPlan, EtlRequest, FitRequest
from cerebro.contract.tags import changed_tags
from cerebro.errors import IllegalEventError
from cerebro.search.procedure import SEARCH
from cerebro.state import workers
from cerebro.state.models import added_models, parallel_plans
from cerebro.state.models.compaction import COMPACT_AFTER
from cerebro.state.runs import breaks, commands, concurrent_runs, planned_run, pruning
from cerebro.state.runs.commands import CommandRecord, Reopening
from cerebro.state.runs.parts.clock import RunClock
from cerebro.state.runs.parts.retention import RunCompaction
from cerebro.state.runs.run import Dataset, Run, RunState
from cerebro.state.runs.search_log import SearchLog
from cerebro.state.runs.search_reports import report_command, report_models
from cerebro.state.tasks import attempt_events, measurements
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import TaskEvent
from cerebro.state.workers import Worker, WorkerChange


@dataclass(kw_only=True)
class ExperimentState:
    """State after all events of one experiment's log."""

    name: str
    seq: int = 0
    """Number of the newest event applied."""
    runs: dict[str, Run] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    """Current workers; while no run is open, the workers of the last run."""
    worker_changes: list[WorkerChange] = field(default_factory=list)
    """Workers that came and went since the first run was requested.

    Changes between runs appear as one net change when the next run opens."""
    unseen: dict[str, Worker] | None = None
    """Current workers, if they changed since the last run ended."""
    datasets: dict[str, Dataset] = field(default_factory=dict)
    commands: list[CommandRecord] = field(default_factory=list)
    """Every user command with its author, oldest first."""
    tags: dict[str, str] = field(default_factory=dict)
    is_archived: bool = False
    deletion: DeletionRequested | None = None
    """The user's deletion request; nothing starts after it."""
    compact_after: int | None = field(default_factory=lambda: COMPACT_AFTER)
    """`RunCompaction.threshold` for new runs."""
    keeps_compacted: bool = False
    """`RunCompaction.keeps_all` for new runs."""
    torn: str = ""
    """Error that left the event after `seq` half applied; empty for a valid state."""

    def etl_runs(self, dataset: str) -> list[Run]:
        """Return the planned ETL runs of a data set, oldest first."""
        return [r for r in self.runs.values() if isinstance(r.plan, EtlPlan) and r.plan.dataset == dataset]

    def etl_request(self, dataset: str) -> EtlRequest | None:
        """Return the request of a data set's newest ETL run."""
        requests = [run.request for run in self.etl_runs(dataset) if isinstance(run.request, EtlRequest)]
        return requests[-1] if requests else None

    def open_runs(self) -> list[Run]:
        """Return the runs that have not ended, oldest first."""
        return [run for run in self.runs.values() if run.is_open]

    def active_run(self) -> Run | None:
        """Return the open run to show: the oldest ETL or fit run, else the oldest."""
        return min(self.open_runs(), key=lambda run: run.is_evaluation, default=None)

    def going_on(self) -> list[Run]:
        """Return the attended runs, oldest first (`cerebro.state.runs.concurrent_runs`)."""
        return concurrent_runs.going_on(self.runs)

    def newest_dataset(self) -> Dataset | None:
        """Return the data set of the newest finished ETL run."""
        finished = [r for r in self.runs.values() if r.kind == "etl" and r.state is RunState.FINISHED]
        plans = [run.plan for run in finished if isinstance(run.plan, EtlPlan)]
        return self.datasets.get(plans[-1].dataset) if plans else None

    def holders(self, dataset: str, partition: int) -> list[Worker]:
        """Return workers, alive or not, with a replica of a training partition."""
        return [w for w in self.workers.values() if (dataset, partition) in w.replicas]

    # --- the fold --------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event.

        Raises:
            IllegalEventError: the event does not fit; the state is unchanged, unless it is `torn`.
            MemoryError, KeyboardInterrupt: the event is valid, but the state is torn.
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
            # A log is data: an unknown name or a missing field makes this event illegal.
            raise IllegalEventError(self.torn) from cause

    def _apply(self, event: Event) -> None:
        match event:
            # First, because they are the most frequent, and matching a type takes time.
            case (
                TaskAssigned()
                | TaskStarted()
                | TaskCommitted()
                | TaskFailed()
                | TaskRevoked()
                | SubEpochSaved()
                | PreemptionRequested()
            ):
                run = self._run(event.task.partition("/")[0])
                attempt_events.apply(event, run, self.workers, self.datasets)
                self._notify_search(run, event)
            case TaskGivenUp():
                run = self._run(event.task.partition("/")[0])
                attempt_events.give_up(event, run)
                self._notify_search(run, event)
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
                | TagsChanged()
                | LocatorsChanged()
                | DeletionRequested()
            ):
                previous_value = self._previous_value(event)
                had_effect = self._apply_command(event)
                if self.unseen is not None and self.open_runs():
                    self._catch_up(self.unseen)
                added: tuple[str, ...] = ()
                if isinstance(event, ModelsAdded) and had_effect:
                    added = tuple(self.runs[event.run].models)[-len(event.models) :]
                self.commands.append(
                    commands.command_record(
                        event,
                        self.seq + 1,
                        is_late=not had_effect,
                        added=added,
                        previous_value=previous_value,
                    )
                )
            case RunStarted():
                run = self._move(event)
                if run.plan is None:
                    run.clock.started, run.pause.volume_pauses = event.time, 0
                    planned_run.begin(self.datasets, self.holders, run, event.plan)
                    if isinstance(run.request, FitRequest) and run.request.search is not None:
                        run.search = SearchLog(first_workers=self._training(), workers=self._training())
                        for model in run.models.values():
                            run.search.observe_added(model, by=SEARCH)
            case RunPaused():
                run = self._move(event)
                run.pause.begin(event)
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
                | ValuesSuggested()
                | ModelsRepeated()
                | CheckpointsPruned()
            ):
                self._note(event)
            case WorkerJoined() | WorkerLost() | WorkerRemoved() | ReplicasChanged():
                self._observe(event)
            case _:
                assert_never(event)

    # --- runs ------------------------------------------------------------------------------------

    def _apply_command(self, event: ClientEvent) -> bool:
        """Apply a user command; return True if it has an effect."""
        match event:
            case RunRequested():
                self._request(event)
            case ExperimentArchived():
                self.is_archived = event.is_archived
            case TagsChanged():
                return self._change_tags(event)
            case LocatorsChanged():
                pass  # the experiment's record has the locators
            case DeletionRequested():
                self._delete(event)
            case _:
                run = self._run(event.run)
                may = run.is_open or self._may_be_reopened(run, event)
                if isinstance(event, ModelExtended):
                    may = may and concurrent_runs.reader(self.runs, run, event.model) is None
                has_effect = may and commands.steer(run, event)
                if has_effect and run.search is not None:
                    report_command(run.search, run, event)
                return has_effect
        return True

    def _change_tags(self, event: TagsChanged) -> bool:
        run = self.runs.get(event.run)
        owner = run.models.get(event.model) if run else self if not event.model else None
        tags = changed_tags(owner.tags, event.tags) if owner else None
        if owner is None or tags is None:
            return False
        owner.tags = tags
        return True

    def _previous_value(self, event: ClientEvent) -> str:
        """Describe the value that the command is about to change in a model."""
        run = self.runs.get(getattr(event, "run", ""))
        model = run.models.get(getattr(event, "model", "")) if run else None
        return commands.previous_value(event, model) if model else ""

    def _may_be_reopened(self, run: Run, event: RunCommand) -> bool:
        if self.deletion is not None:
            return False
        if isinstance(event, RunResumed) and pruning.lost_text(self.runs, run):
            return False
        if isinstance(event, Reopening) and event.can_reopen:
            return concurrent_runs.obstacle(self.runs, run) is None
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
            clock=RunClock(requested=event.time),
            compaction=RunCompaction(threshold=self.compact_after, keeps_all=self.keeps_compacted),
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
        if run.tasks.open:
            raise IllegalEventError(f"RunFinished of {run.id} while tasks are open")
        run.state, run.failures.error, run.clock.ended = RunState(event.outcome), event.error, event.time
        run.verifications.end()

    def _note(
        self,
        event: EpochCompleted
        | SchedulePlanned
        | ForecastMade
        | DevicesTaken
        | ParallelPlansRuledOut
        | TrialsRecalled
        | SearchDecided
        | ValuesSuggested
        | ModelsRepeated
        | CheckpointsPruned,
    ) -> None:
        run = self._run(event.run)
        if not run.is_open or run.kind != "fit":
            raise IllegalEventError(f"{event.type} of {run.id}, a {run.kind} run that is {run.state}")
        if isinstance(event, SchedulePlanned):
            run.scheduling.planned = event
        elif isinstance(event, ForecastMade):
            run.scheduling.forecasts.append(event)
        elif isinstance(event, DevicesTaken):
            run.device_time.add_taken(event)
        elif isinstance(event, ParallelPlansRuledOut):
            parallel_plans.strike_all(event, run)
        elif isinstance(event, TrialsRecalled):
            measurements.recall(event, run)
        elif isinstance(event, SearchDecided | ValuesSuggested):
            self._search(event, run)
        elif isinstance(event, ModelsRepeated):
            added_models.repeat(run, event)
        elif isinstance(event, CheckpointsPruned):
            pruning.prune(self.runs, run, event)
        elif event.epoch != len(run.scheduling.epochs) + 1:
            raise IllegalEventError(
                f"epoch {event.epoch} of {run.id} completed after {len(run.scheduling.epochs)} epochs"
            )
        else:
            run.observe_report(event, self.workers)

    # --- searches --------------------------------------------------------------------------------

    def _search(self, event: SearchDecided | ValuesSuggested, run: Run) -> None:
        if run.search is None:
            raise IllegalEventError(f"{event.type} of {run.id}, which searches nothing")
        if isinstance(event, SearchDecided):
            added_models.decide(run, event)
        else:
            run.search.observe_suggestions(event, since_s=event.time - run.clock.begun)

    def _notify_search(self, run: Run, event: TaskEvent | TaskGivenUp) -> None:
        if run.search is None or isinstance(
            event, TaskAssigned | TaskStarted | SubEpochSaved | PreemptionRequested
        ):
            return
        model = TaskKey.parse(event.task).model
        if model in run.search.reported:
            report_models(run.search, run, (run.models[model],), time=event.time, by=SEARCH)

    def _training(self) -> int:
        """Count the live workers that train."""
        return sum(worker.is_alive and worker.trains for worker in self.workers.values())

    # --- workers ---------------------------------------------------------------------------------

    def _observe(self, event: ClusterEvent) -> None:
        """Apply a change of workers: discard plans, and end breaks that are over."""
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
            # Workers that left before the first run don't matter.
            if isinstance(event, WorkerRemoved):
                del self.workers[event.worker]
            elif isinstance(event, WorkerJoined):
                self.workers[event.worker].most_devices = event.devices
        elif name:
            self._note_change(self.workers[name], was_there=was_there)
        for run in concerned:
            run.scheduling.planned = None
            breaks.end(run, self.workers.values())
        self._notify_workers(open_runs)

    def _notify_workers(self, runs: Iterable[Run]) -> None:
        """Searches ask for the number of models to train at once."""
        for run in runs:
            if run.search is not None:
                run.search.observe_workers(self._training())

    def _note_change(self, worker: Worker, *, was_there: bool) -> None:
        if worker.is_alive != was_there:
            self.worker_changes.append(WorkerChange(worker.name, worker.since, worker.is_alive, worker.lost))

    def _is_of_interest(self, event: ClusterEvent, run: Run) -> bool:
        """True if it changes where the run can train. Its own tasks may have reported the volume's replicas already."""
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
        """Adopt the current workers when a run opens again."""
        previous_workers, self.workers, self.unseen = self.workers, unseen, None
        for worker in self.workers.values():
            known = previous_workers.get(worker.name)
            worker.most_devices = max(worker.devices, known.most_devices if known else 1)
            self._note_change(worker, was_there=known is not None and known.is_alive)
        for run in self.open_runs():
            run.scheduling.planned = None
        self._notify_workers(self.open_runs())


def fold(
    name: str, events: tuple[Event, ...] | list[Event], *, keeps_compacted: bool = False
) -> ExperimentState:
    """Return the state after all of `events`; see `RunCompaction.keeps_all`."""
    state = ExperimentState(name=name, keeps_compacted=keeps_compacted)
    for event in events:
        state.apply(event)
    return state
