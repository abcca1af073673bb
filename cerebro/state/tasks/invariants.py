"""Invariants of Model Hopper Parallelism (seed paper, section 3.1), checked on every event. Changes nothing.

Completeness: in each epoch a model trains on every partition once, alone or in a set. Isolation: one worker or gang
trains a model at a time. Exclusive access: a device runs one sub-epoch, or those of one fused group, at a time. All or
nothing: a gang's workers get, start and lose an attempt together. Non-preemption: no running sub-epoch is revoked for
another one; this needs no check, since open attempts can only end.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.contract.events import TaskAssigned, TaskStarted
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.errors import IllegalEventError
from cerebro.state.models.model import Model
from cerebro.state.runs.run import Dataset, Run, RunState
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.workers import Worker, slots_of

Members = Sequence[tuple[Worker, tuple[int, ...]]]
"""The workers of an attempt with their devices; for a gang in the order of its partitions."""


def check_assignment(
    event: TaskAssigned,
    key: TaskKey,
    run: Run,
    members: Members,
    *,
    model: Model | None,
    dataset: Dataset | None,
) -> None:
    """Check the assignment of a task to a worker or gang.

    Args:
        key: of `event.task`.
        members: workers and their devices, `event.worker` first.
        model: the model to train or validate, if any.
        dataset: the run's data set, if known.

    Raises:
        IllegalEventError: the assignment is illegal.
    """
    if run.state not in (RunState.RUNNING, RunState.STOPPING):
        raise IllegalEventError(f"{event.task} assigned while {run.id} is {run.state}")
    for worker, devices in members:
        _check_place(event, worker, devices)
    if event.group is not None:
        _check_group(event, event.group, key, members[0][0])
    if (key.other_partitions or event.other_members) and key.other_partitions != tuple(
        m.partition for m in event.other_members
    ):
        raise IllegalEventError(
            f"{event.task} assigned to a gang that reads other partitions: {event.other_members or event.worker}"
        )
    if key.kind == "etl":
        _check_partition(run, key, dataset)
    elif key.kind == "train" and model is not None:
        _check_sub_epoch(event, key, run, members, model)
    elif key.kind == "trial":
        _check_trial(event, key, run)
    elif key.kind == "verify":
        _check_verification(event, key, run, members)


def check_start(event: TaskStarted, members: Members) -> None:
    """Check that the task is next on each of its workers.

    Raises:
        IllegalEventError: a worker has an older task.
    """
    for worker, _ in members:
        if not worker.is_next(event.task):
            raise IllegalEventError(
                f"{worker.name} started {event.task} while {next(iter(worker.open_tasks))} is open there"
            )


def _check_place(event: TaskAssigned, worker: Worker, devices: tuple[int, ...]) -> None:
    if not worker.is_alive:
        raise IllegalEventError(f"{event.task} assigned to {worker.name}, which is lost")
    if max(devices, default=0) >= worker.devices:
        raise IllegalEventError(
            f"{event.task} assigned to device {max(devices)} of {worker.name}, which has {worker.devices}"
        )
    if event.group is not None and event.group.id in worker.groups.values():
        return
    for slot in slots_of(devices):
        if len(found := worker.tasks_in(slot)) >= QUEUE_DEPTH:
            raise IllegalEventError(f"{event.task} assigned to {worker.name}, which has {found} there")


def _check_group(event: TaskAssigned, group: FusedGroup, key: TaskKey, worker: Worker) -> None:
    """Check that a fused group trains one epoch of a run on one partition and one set of devices."""
    plan = event.parallel_plan
    if key.kind != "train" or event.other_members or plan is None or not 1 < group.size <= plan.fused_models:
        raise IllegalEventError(
            f"{event.task} assigned to a fused group of {group.size} by {plan and plan.label}"
        )
    for other, of_group in worker.groups.items():
        known = TaskKey.parse(other)
        is_alike = (known.run, known.epoch, known.partition) == (key.run, key.epoch, key.partition)
        if of_group == group.id and not (is_alike and worker.open_tasks[other] == event.devices):
            raise IllegalEventError(f"{event.task} assigned to the fused group of {other}")


def _check_sub_epoch(event: TaskAssigned, key: TaskKey, run: Run, members: Members, model: Model) -> None:
    if event.parallel_plan is not None and any(
        event.parallel_plan.size != len(devices) for _, devices in members
    ):
        raise IllegalEventError(
            f"{event.task} assigned to devices {event.devices} by {event.parallel_plan.label}"
        )
    if event.config_version >= len(model.configs.versions):
        raise IllegalEventError(
            f"{event.task} has config version {event.config_version}, but {model.id} has {len(model.configs.versions)}"
        )
    if model.busy:
        raise IllegalEventError(f"isolation: {event.task} assigned while {model.busy} is open")
    if not model.needs(key.epoch or 0, key.partitions):
        raise IllegalEventError(f"completeness: {event.task} assigned, but {model.id} does not need it now")
    if event.other_members and len({worker.name for worker, _ in members}) < len(members):
        raise IllegalEventError(
            f"{event.task} assigned to a gang that names a worker twice: {event.other_members}"
        )
    for (worker, _), partition in zip(members, key.partitions, strict=True):
        if isinstance(run.plan, FitPlan) and (run.plan.dataset, partition) not in worker.replicas:
            raise IllegalEventError(
                f"{event.task} assigned to {worker.name}, which does not hold partition {partition}"
            )


def _check_trial(event: TaskAssigned, key: TaskKey, run: Run) -> None:
    group = run.trials.inspection.group(key.group or "") if run.trials.inspection else None
    known = group.parallel_plan(key.parallel_plan or "") if group else None
    if known is None:
        raise IllegalEventError(f"{event.task} assigned, but {run.id} knows no such parallel plan")
    if len(event.devices) != known.parallel_plan.size:
        raise IllegalEventError(
            f"{event.task} assigned to devices {event.devices}, but takes {known.parallel_plan.size}"
        )


def _check_verification(event: TaskAssigned, key: TaskKey, run: Run, members: Members) -> None:
    verification, (worker, devices) = run.verifications.get(key), members[0]
    if verification is None or len(devices) != 1:
        raise IllegalEventError(f"{event.task} assigned, but nothing is to be verified there")
    if worker.name in verification.seen_by:
        raise IllegalEventError(
            f"{event.task} assigned to {worker.name}, which has done the sub-epoch before"
        )
    if run.plan is None or (run.plan.dataset, verification.completed.partition) not in worker.replicas:
        raise IllegalEventError(
            f"{event.task} assigned to {worker.name}, which does not hold partition {verification.completed.partition}"
        )


def _check_partition(run: Run, key: TaskKey, dataset: Dataset | None) -> None:
    parts = dataset.plan.splits.get(key.split or "", ()) if dataset else ()
    is_train = run.kind == "etl" or key.split == "train"
    if not is_train or not any(part.partition == key.partition for part in parts):
        raise IllegalEventError(f"{key} is no partition that {run.id} could want")
