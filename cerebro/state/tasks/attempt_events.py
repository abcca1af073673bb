"""Effects of task events on the task, its model, run and worker. Pure.

`cerebro.state.tasks.invariants` checks an event first; an illegal one changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.events import (
    PreemptionRequested,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskGivenUp,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import IllegalEventError
from cerebro.state.models import parallel_plans
from cerebro.state.models.model import Model
from cerebro.state.runs.run import Dataset, Run
from cerebro.state.tasks import commit_events, failure_events, invariants, verifications
from cerebro.state.tasks.invariants import Members
from cerebro.state.tasks.task import Task, TaskEvent, TaskState
from cerebro.state.workers import Ended, Worker


class _Concerned(NamedTuple):
    """The objects of an event. `model` is set for training and validation; `worker` leads the gang, if any."""

    run: Run
    task: Task
    worker: Worker
    model: Model | None
    members: Members


def apply(event: TaskEvent, run: Run, workers: Mapping[str, Worker], datasets: Mapping[str, Dataset]) -> None:
    """Apply a task event of `run`.

    Raises:
        IllegalEventError: it does not fit.
    """
    concerned = _concerned(event, run, workers)
    match event:
        case TaskAssigned():
            _assign(event, concerned, datasets)
        case TaskStarted():
            _begin(event, concerned)
        case TaskCommitted() | TaskFailed() | TaskRevoked():
            _close(event, concerned, datasets, workers)
            _see_end(event, concerned, workers)
            if isinstance(event, TaskCommitted):
                _see_verification(event, concerned, workers)
        case SubEpochSaved() | PreemptionRequested():
            _go_on(event, concerned)


def _concerned(event: TaskEvent, run: Run, workers: Mapping[str, Worker]) -> _Concerned:
    """Find the objects of an event that fits its task."""
    task = run.tasks.by_key.get(event.task) or run.find(event.task)
    task.check(event)
    worker = _known(workers, event, event.worker)
    source = event if isinstance(event, TaskAssigned) else task.attempts[-1]
    members: Members = ((worker, source.devices),)
    if source.other_members:
        members = (
            *members,
            *((_known(workers, event, each.worker), each.devices) for each in source.other_members),
        )
    # A verification does not affect its model.
    is_models = task.key.model and task.key.kind != "verify"
    return _Concerned(run, task, worker, run.models.get(task.key.model or "") if is_models else None, members)


def _known(workers: Mapping[str, Worker], event: TaskEvent, name: str) -> Worker:
    if name not in workers:
        raise IllegalEventError(f"{event.type} of {event.task} at unknown worker {name}")
    return workers[name]


def _assign(event: TaskAssigned, concerned: _Concerned, datasets: Mapping[str, Dataset]) -> None:
    run, task, worker, model, members = concerned
    dataset = datasets.get(run.plan.dataset) if run.plan else None
    invariants.check_assignment(event, task.key, run, members, model=model, dataset=dataset)
    run.tasks.by_key[event.task] = run.tasks.open[event.task] = task
    run.tasks.is_fresh = False
    if task.key.kind == "etl" and run.kind != "etl":
        run.tasks.replicas[event.task] = task
    for member, devices in members:
        member.open(event.task, devices, event.group)
    if model and task.key.kind == "train":
        model.busy, model.configs.active = event.task, event.config_version
    task.assign(event, worker.name)
    run.observe_task(event.task, task)


def _begin(event: TaskStarted, concerned: _Concerned) -> None:
    run, task, _, model, members = concerned
    invariants.check_start(event, members)
    if model and task.key.kind == "train":
        run.clock.first_start = min(run.clock.first_start, event.time)
        is_saved = model.checkpoints.savepoint_of(event.task) is not None
        model.effort.repeated_attempts += not is_saved and any(attempt.has_run for attempt in task.attempts)
    task.start(event)
    _see_worked(run, task, event.time)


def _go_on(event: SubEpochSaved | PreemptionRequested, concerned: _Concerned) -> None:
    run, task, _, model, _ = concerned
    if isinstance(event, PreemptionRequested):
        task.attempts[-1].release_requested_at = event.time
        return
    if model is None or task.key.kind != "train":
        raise IllegalEventError(f"savepoint of {event.task}, which is no sub-epoch of training")
    model.save(event.task, event.attempt, event.savepoint)
    run.clock.worked = event.time


def _close(
    event: TaskCommitted | TaskFailed | TaskRevoked,
    concerned: _Concerned,
    datasets: Mapping[str, Dataset],
    workers: Mapping[str, Worker],
) -> None:
    run, task, worker, model, members = concerned
    # Read before the task changes: an attempt that never ran has read no savepoint.
    is_running = task.state is TaskState.RUNNING
    trainee = model if task.key.kind == "train" else None
    for member, _ in members:
        member.close(event.task)
    del run.tasks.open[event.task]
    if model and model.busy == event.task:
        model.busy = None
    if not task.attempts[-1].has_run:
        _leave_group(task, run)
    if not isinstance(event, TaskRevoked):  # the controller wrote the event, not a worker
        _see_worked(run, task, event.time)
    match event:
        case TaskCommitted():
            task.commit(event)
            run.pause.volume_pauses = 0
            _observe_work(run, task)
            commit_events.commit(
                event, run, task, worker=worker, model=model, datasets=datasets, workers=workers
            )
        case TaskFailed():
            again = model is not None and is_running and failure_events.judge_savepoint(event, model)
            again = again or _is_to_be_confirmed(event, run, task)
            may_go_on = trainee is not None and not again and not event.failure.is_final
            goes_on = (
                may_go_on and trainee is not None and parallel_plans.judge(event.failure, run, task, trainee)
            )
            task.fail(event, run.max_attempts, is_worth_another=again, goes_another_way=goes_on)
            _observe_work(run, task)
            is_released = event.failure.kind is FailureKind.PREEMPTED
            newest = task.attempts[-1]
            # In a gang another worker may be draining; it reports that itself.
            worker.is_ending |= (
                is_released and newest.release_requested_at is None and not newest.other_members
            )
            is_device = event.failure.kind is FailureKind.DEVICE
            # For machine failures the task's message has the count.
            failure_events.fail((is_device and task.failure) or event.failure, run, task, model)
        case TaskRevoked():
            if model is not None and is_running:
                failure_events.judge_savepoint(event, model)
            goes_on = False
            if is_running and event.loss is FailureKind.OUT_OF_MEMORY and trainee is not None:
                killed = Failure(kind=event.loss, message=event.reason, memory_kind="host")
                goes_on = parallel_plans.judge(killed, run, task, trainee)
            elif is_running and len(members) > 1 and trainee is not None and event.loss is FailureKind.CRASH:
                lost = Failure(kind=FailureKind.MEMBER_LOST, message=event.reason)
                goes_on = parallel_plans.judge(lost, run, task, trainee)
            task.revoke(event, run.max_attempts, goes_another_way=goes_on)
            _observe_work(run, task)
            if task.state is TaskState.FAILED and task.failure is not None:
                failure_events.fail(task.failure, run, task, model)
    if model is not None and task.state is TaskState.PENDING and model.checkpoints.savepoint_of(event.task):
        # It has priority: training the model elsewhere would discard the savepoint.
        task.keep_savepoint()
    run.observe_task(event.task, task)
    run.tasks.observe_memory(event.task, task)
    # Within an epoch the counts of a model don't change.
    if model and (
        task.key.kind != "train" or task.state is not TaskState.COMMITTED or model.is_between_epochs
    ):
        run.observe_model(model)


def _leave_group(task: Task, run: Run) -> None:
    """Divide the devices' time among the other attempts of the fused group: this one never starts."""
    group = task.attempts[-1].group
    if group is None:
        return
    for other in run.tasks.open.values():
        attempt = other.attempts[-1]
        if attempt.group is not None and attempt.group.id == group.id:
            attempt.group = attempt.group.model_copy(update={"size": attempt.group.size - 1})


def give_up(event: TaskGivenUp, run: Run) -> None:
    """Apply that no worker has the memory a task needs; ignore outdated events."""
    task = run.tasks.by_key.get(event.task)
    if task is None or (task.state, task.attempt) != (TaskState.PENDING, event.attempt):
        return
    model = run.models.get(task.key.model or "")
    if model is not None and model.is_cut_short:
        return
    lack = task.lacks[-1] if task.lacks else None
    failure = Failure(
        kind=FailureKind.OUT_OF_MEMORY,
        message=event.reason,
        traceback=task.failure.traceback if task.failure else "",
        memory_kind=lack.memory_kind if lack else None,
        peak_bytes=lack.peak_bytes if lack else 0,
        limit_bytes=lack.limit_bytes if lack else 0,
    )
    if model is not None and task.key.kind == "train":
        parallel_plans.strike_last(failure, run, task, model)
    task.give_up(failure)
    failure_events.fail(failure, run, task, model)
    run.observe_task(event.task, task)
    if model is not None:
        run.observe_model(model)


def _is_to_be_confirmed(event: TaskFailed, run: Run, task: Task) -> bool:
    """Whether to repeat a task elsewhere: a broken device may raise the same error.

    Once per run, so errors in user code appear early."""
    is_users = event.failure.kind is FailureKind.USER_ERROR
    is_last = task.failures + 1 >= run.max_attempts
    is_over = is_last or event.failure.is_final
    if not (is_users and event.failure.may_be_device) or is_over or run.failures.doubted:
        return False
    run.failures.doubted = event.task
    return True


def _see_end(
    event: TaskCommitted | TaskFailed | TaskRevoked, concerned: _Concerned, workers: Mapping[str, Worker]
) -> None:
    """Record for the workers how the attempt ended, as evidence of broken machines."""
    run, task, worker, _, members = concerned
    if isinstance(event, TaskRevoked):
        return
    model, fused = task.key.model or "", task.attempts[-1].group
    group = fused.id if fused is not None else ""
    if isinstance(event, TaskCommitted):
        for member, _ in members:
            member.record_end(Ended(event.time, event.task, model, group=group))
        for name in {*task.doubts} - {member.name for member, _ in members}:
            # The machine was at fault: the same code has committed elsewhere.
            found = [each for each in workers[name].ended if event.task in each.tasks and each.is_doubtful]
            for each in found:
                proof = each._replace(time=event.time, task=event.task, other_tasks=(), is_device=True)
                workers[name].record_end(proof)
        if run.failures.doubted == event.task:
            run.failures.doubted = ""
        task.doubts = ()
        return
    if not event.failure.kind.traits.may_be_worker:
        return
    is_device = event.failure.kind is FailureKind.DEVICE
    at = _of_rank(event.failure.rank, members) or worker
    rule = event.failure.rule
    is_certain = is_device and rule is not None and rule.action == "quarantine"
    at.record_end(
        Ended(event.time, event.task, model, event.failure, is_device, is_certain=is_certain, group=group)
    )


def _of_rank(rank: int | None, members: Members) -> Worker | None:
    """The gang's worker with this rank."""
    for member, devices in members:
        if rank is None or rank < len(devices):
            return member if rank is not None else None
        rank -= len(devices)
    return None


def _see_verification(event: TaskCommitted, concerned: _Concerned, workers: Mapping[str, Worker]) -> None:
    """Start a verification, or record its result."""
    run, task, _, model, _ = concerned
    if task.key.kind == "verify":
        verifications.observe_reexecution(run.verifications, event, workers)
    elif task.key.kind == "train" and model is not None and run.fit_request.verify and run.plan is not None:
        verifications.observe_commit(
            run.verifications,
            task,
            model,
            seed=run.fit_request.seed,
            share=run.fit_request.verify,
            dataset=run.plan.dataset,
            committed=run.counts.sub_epochs,
            workers=workers,
        )


def _see_worked(run: Run, task: Task, at: float) -> None:
    # An ETL container may run search tasks while no worker trains.
    if task.key.kind != "search":
        run.clock.worked = at


def _observe_work(run: Run, task: Task) -> None:
    newest = task.attempts[-1]
    if newest.started < run.clock.first_work and task.key.kind == "train" and newest.has_run:
        run.clock.first_work = min(run.clock.first_work, newest.started + newest.start_s)
