"""The fold itself: `ExperimentState.apply` for each kind of event.

`apply` checks first and changes afterwards, so an illegal event raises and leaves the state as it was. The
invariants of Model Hopper Parallelism (seed paper, section 3.1) are checked here on every event:
completeness, isolation, exclusive access, non-preemption.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from cerebro.contract.base import Split
from cerebro.contract.events import (
    EpochCompleted,
    Event,
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SchedulePlanned,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluatePlan, FitPlan, FitRequest, Plan
from cerebro.contract.tasks import FailureKind
from cerebro.errors import IllegalEventError
from cerebro.state import failures, workers
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model, Visit
from cerebro.state.runs import TRANSITIONS, WISHES, Dataset, Run, RunState
from cerebro.state.tasks import Task, TaskEvent, TaskState
from cerebro.state.workers import QUEUE_DEPTH, Worker


@dataclass(kw_only=True)
class ExperimentState:
    """Everything the log of one experiment says."""

    name: str
    seq: int = 0
    """Of the newest event applied."""
    runs: dict[str, Run] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)

    def etl_request(self, dataset: str) -> EtlRequest | None:
        """What the newest ETL run of a data set was asked for."""
        made = [r for r in self.runs.values() if isinstance(r.plan, EtlPlan) and r.plan.dataset == dataset]
        requests = [run.request for run in made if isinstance(run.request, EtlRequest)]
        return requests[-1] if requests else None

    def active_run(self) -> Run | None:
        """The oldest run that has not ended."""
        return next((run for run in self.runs.values() if run.is_open), None)

    def newest_dataset(self) -> Dataset | None:
        """The data set of the newest finished ETL run."""
        finished = [r for r in self.runs.values() if r.kind == "etl" and r.state is RunState.FINISHED]
        plans = [run.plan for run in finished if isinstance(run.plan, EtlPlan)]
        return self.datasets.get(plans[-1].dataset) if plans else None

    def holders(self, dataset: str, partition: int) -> list[Worker]:
        """Workers, alive or not, that hold a training partition."""
        return [w for w in self.workers.values() if (dataset, partition) in w.holdings]

    # --- the fold --------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event in.

        Raises:
            IllegalEventError: the event does not fit; the state is unchanged.
        """
        if event.seq and event.seq != self.seq + 1:
            raise IllegalEventError(f"event {event.seq} of {self.name!r} follows event {self.seq}")
        self._apply(event)
        self.seq += 1

    def _apply(self, event: Event) -> None:
        match event:
            case RunRequested():
                self._request(event)
            case RunStarted():
                run = self._move(event)
                if run is not None and run.plan is None:
                    self._start(run, event.plan)
                    run.started = event.time
            case RunPaused():
                run = self._move(event)
                if run is not None:
                    run.reason, run.needs_bytes, run.storage_full = event.reason, event.needs_bytes, None
            case RunResumed() | RunStopRequested():
                run = self._move(event)
                if run is not None:
                    run.reason, run.needs_bytes, run.storage_full = "", 0, None
            case RunFinished():
                self._finish(event)
            case EpochCompleted() | SchedulePlanned():
                self._note(event)
            case WorkerJoined():
                workers.join(self.workers, event)
                self._void_plans(event.worker)
            case WorkerLost():
                workers.lose(self.workers, event)
                self._void_plans(event.worker)
            case WorkerRemoved():
                workers.remove(self.workers, event)
            case TaskAssigned() | TaskStarted() | TaskCommitted() | TaskFailed() | TaskRevoked():
                self._task(event)
            case _:
                assert_never(event)

    # --- runs ------------------------------------------------------------------------------------

    def _request(self, event: RunRequested) -> None:
        if event.run in self.runs:
            raise IllegalEventError(f"run {event.run!r} was requested already")
        self.runs[event.run] = Run(
            id=event.run, request=event.request, author=event.author, requested=event.time
        )

    def _move(self, event: RunStarted | RunPaused | RunResumed | RunStopRequested) -> Run | None:
        """Change a run's state by the table; `None` for a wish that came too late."""
        run = self._run(event.run)
        target = TRANSITIONS.get((run.state, event.type))
        if target is None:
            if event.type in WISHES:
                return None
            raise IllegalEventError(f"{event.type} of {run.id} while it is {run.state}")
        run.state = target
        return run

    def _run(self, name: str) -> Run:
        if name not in self.runs:
            raise IllegalEventError(f"no run {name!r} in experiment {self.name!r}")
        return self.runs[name]

    def _start(self, run: Run, plan: Plan) -> None:
        run.plan = plan
        if isinstance(plan, EtlPlan):
            self.datasets.setdefault(plan.dataset, Dataset(id=plan.dataset, plan=plan))
            done = self.datasets[plan.dataset].rows
            for split, parts in plan.splits.items():
                for part in parts:
                    key = TaskKey(run=run.id, kind="etl", split=split, partition=part.partition)
                    is_lost = split == "train" and not self.holders(plan.dataset, part.partition)
                    if is_lost or (split, part.partition) not in done:
                        run.tasks[str(key)] = Task(key=key)
        elif isinstance(plan, FitPlan) and isinstance(run.request, FitRequest):
            for name, hyperparams in plan.models.items():
                partitions = tuple(sorted(plan.partitions))
                run.models[name] = Model(
                    id=name, hyperparams=hyperparams, epochs=run.request.epochs, partitions=partitions
                )
        elif isinstance(plan, EvaluatePlan):
            for model in plan.models:
                for partition in plan.partitions:
                    key = TaskKey(run=run.id, kind=run.kind, model=model, partition=partition)
                    run.tasks[str(key)] = Task(key=key)

    def _finish(self, event: RunFinished) -> None:
        run = self._run(event.run)
        if not run.is_open:
            raise IllegalEventError(f"RunFinished of {run.id} while it is {run.state}")
        if run.open_tasks():
            raise IllegalEventError(f"RunFinished of {run.id} while tasks are open")
        run.state, run.error, run.ended = RunState(event.outcome), event.error, event.time

    def _note(self, event: EpochCompleted | SchedulePlanned) -> None:
        run = self._run(event.run)
        if not run.is_open or run.kind != "fit":
            raise IllegalEventError(f"{event.type} of {run.id}, a {run.kind} run that is {run.state}")
        if isinstance(event, SchedulePlanned):
            run.planned = event
        elif event.epoch != len(run.epochs) + 1:
            raise IllegalEventError(
                f"epoch {event.epoch} of {run.id} completed after {len(run.epochs)} epochs"
            )
        else:
            run.epochs.append(event)

    # --- workers ---------------------------------------------------------------------------------

    def _void_plans(self, worker: str) -> None:
        """Plans were made for the workers there were, and for what they held."""
        if self.workers[worker].trains:
            for run in self.runs.values():
                if run.is_open:
                    run.planned = None

    # --- tasks -----------------------------------------------------------------------------------

    def _task(self, event: TaskEvent) -> None:
        key = TaskKey.parse(event.task)
        run = self._run(key.run)
        task = run.task(key)
        task.check(event)
        worker = self.workers.get(event.worker)
        if worker is None:
            raise IllegalEventError(f"{event.type} of {event.task} at unknown worker {event.worker}")
        model = run.models.get(key.model) if key.model and run.kind == "fit" else None
        if isinstance(event, TaskAssigned):
            self._check_assignment(event, run, task, worker, model)
        if isinstance(event, TaskStarted) and worker.open_tasks[0] != event.task:
            raise IllegalEventError(
                f"{worker.name} started {event.task} while {worker.open_tasks[0]} is open there"
            )
        run.tasks[event.task] = task
        if key.kind == "etl" and run.kind != "etl":
            run.remade[event.task] = task
        task.apply(event, run.max_attempts)
        if isinstance(event, TaskAssigned):
            run.open[event.task] = task
            worker.open_tasks.append(event.task)
            if model and key.kind == "train":
                model.busy = event.task
            return
        if isinstance(event, TaskStarted):
            return
        worker.open_tasks.remove(event.task)
        del run.open[event.task]
        if model and model.busy == event.task:
            model.busy = None
        if isinstance(event, TaskCommitted):
            self._commit(event, run, task, worker, model)
        elif isinstance(event, TaskFailed):
            worker.is_ending |= event.failure.kind is FailureKind.PREEMPTED
            failures.fail(event.failure, run, task, model)
        elif task.state is TaskState.FAILED and task.failure is not None:
            failures.fail(task.failure, run, task, model)

    def _check_assignment(
        self, event: TaskAssigned, run: Run, task: Task, worker: Worker, model: Model | None
    ) -> None:
        if run.state not in (RunState.RUNNING, RunState.STOPPING):
            raise IllegalEventError(f"{event.task} assigned while {run.id} is {run.state}")
        if not worker.is_alive:
            raise IllegalEventError(f"{event.task} assigned to {worker.name}, which is lost")
        if len(worker.open_tasks) >= QUEUE_DEPTH:
            raise IllegalEventError(f"{event.task} assigned to {worker.name}, which has {worker.open_tasks}")
        if task.key.kind == "etl":
            self._check_partition(run, task.key)
        if model is None or task.key.kind != "train":
            return
        if model.busy:
            raise IllegalEventError(f"isolation: {event.task} assigned while {model.busy} is open")
        if task.key.partition not in model.remaining or task.key.epoch != model.epoch:
            raise IllegalEventError(
                f"completeness: {event.task} assigned, but {model.id} does not need it now"
            )
        if isinstance(run.plan, FitPlan) and (run.plan.dataset, task.key.partition) not in worker.holdings:
            raise IllegalEventError(
                f"{event.task} assigned to {worker.name}, which does not hold the partition"
            )

    def _check_partition(self, run: Run, key: TaskKey) -> None:
        made = self.datasets.get(run.plan.dataset) if run.plan else None
        parts = made.plan.splits.get(key.split or "", ()) if made else ()
        is_train = run.kind == "etl" or key.split == "train"
        if not is_train or not any(part.partition == key.partition for part in parts):
            raise IllegalEventError(f"{key} is no partition that {run.id} could want")

    def _commit(
        self, event: TaskCommitted, run: Run, task: Task, worker: Worker, model: Model | None
    ) -> None:
        key, result = task.key, event.result
        if key.kind == "etl" and run.plan and key.split and key.partition is not None:
            self._keep(run.plan.dataset, key.split, key.partition, event, worker)
            if run.kind != "etl":
                # It may have to be made again, should this worker go as well, or another one come.
                task.reopen()
                run.planned = None
        elif key.kind == "train" and model and key.epoch and key.partition is not None and result.checkpoint:
            # Trained on from a copy loaded earlier: the epoch before cannot be validated any more.
            for epoch in model.unreadable:
                run.validation(model, epoch).state = TaskState.FAILED
            model.unreadable.clear()
            model.visits.append(
                Visit(
                    epoch=key.epoch,
                    partition=key.partition,
                    attempt=event.attempt,
                    worker=worker.name,
                    rows=result.rows,
                    metrics=result.metrics,
                    checkpoint=result.checkpoint,
                    started=task.attempts[-1].started,
                    ended=event.time,
                    compute_s=result.timings.compute_s,
                )
            )
        elif key.kind == "valid" and model and key.epoch:
            model.validations[key.epoch] = result.metrics
        if model:
            run.settle(model)

    def _keep(self, dataset: str, split: Split, partition: int, event: TaskCommitted, worker: Worker) -> None:
        made = self.datasets[dataset]
        made.rows[split, partition] = event.result.rows
        made.failed_rows[split, partition] = event.result.rows_failed
        if split == "train":
            worker.holdings.add((dataset, partition))


def fold(name: str, events: tuple[Event, ...] | list[Event]) -> ExperimentState:
    """The state after all of `events`."""
    state = ExperimentState(name=name)
    for event in events:
        state.apply(event)
    return state
