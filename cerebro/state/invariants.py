"""What may be assigned: the invariants of Model Hopper Parallelism (seed paper, section 3.1), checked on every event.

Completeness: in each epoch a model visits every partition once. Isolation: a model is trained by one worker at a time.
Exclusive access: a device of a worker runs one unit at a time. Non-preemption: no unit that runs is taken back for
another one, which needs no check here, because what is open can only end. Nothing here changes anything.
"""

from __future__ import annotations

from cerebro.contract.events import TaskAssigned, TaskStarted
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.runs import FitPlan
from cerebro.errors import IllegalEventError
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model
from cerebro.state.runs import Dataset, Run, RunState
from cerebro.state.workers import Worker, lanes_of


def check_assignment(
    event: TaskAssigned,
    key: TaskKey,
    run: Run,
    worker: Worker,
    *,
    model: Model | None,
    dataset: Dataset | None,
) -> None:
    """Whether `worker` may be given a task.

    Args:
        key: of `event.task`.
        model: the one it trains or validates, if any.
        dataset: the run's, if it is known.

    Raises:
        IllegalEventError: no.
    """
    if run.state not in (RunState.RUNNING, RunState.STOPPING):
        raise IllegalEventError(f"{event.task} assigned while {run.id} is {run.state}")
    if not worker.is_alive:
        raise IllegalEventError(f"{event.task} assigned to {worker.name}, which is lost")
    if max(event.devices, default=0) >= worker.devices:
        raise IllegalEventError(
            f"{event.task} assigned to device {max(event.devices)} of {worker.name}, which has {worker.devices}"
        )
    for lane in lanes_of(event.devices):
        if len(found := worker.in_lane(lane)) >= QUEUE_DEPTH:
            raise IllegalEventError(f"{event.task} assigned to {worker.name}, which has {found} there")
    if key.kind == "etl":
        _check_partition(run, key, dataset)
    elif key.kind == "train" and model is not None:
        _check_unit(event, key, run, worker, model)
    elif key.kind == "trial":
        _check_trial(event, key, run)


def check_start(event: TaskStarted, worker: Worker) -> None:
    """Whether it is the worker's turn to run the task.

    Raises:
        IllegalEventError: it has an older one.
    """
    if not worker.is_next(event.task):
        raise IllegalEventError(
            f"{worker.name} started {event.task} while {next(iter(worker.open_tasks))} is open there"
        )


def _check_unit(event: TaskAssigned, key: TaskKey, run: Run, worker: Worker, model: Model) -> None:
    if event.way is not None and event.way.size != len(event.devices):
        raise IllegalEventError(f"{event.task} assigned to devices {event.devices} by {event.way.label}")
    if model.busy:
        raise IllegalEventError(f"isolation: {event.task} assigned while {model.busy} is open")
    partition = -1 if key.partition is None else key.partition
    if not model.needs(key.epoch or 0, partition):
        raise IllegalEventError(f"completeness: {event.task} assigned, but {model.id} does not need it now")
    if isinstance(run.plan, FitPlan) and (run.plan.dataset, partition) not in worker.holdings:
        raise IllegalEventError(f"{event.task} assigned to {worker.name}, which does not hold the partition")


def _check_trial(event: TaskAssigned, key: TaskKey, run: Run) -> None:
    group = run.inspection.group(key.group or "") if run.inspection else None
    known = group.way(key.way or "") if group else None
    if known is None:
        raise IllegalEventError(f"{event.task} assigned, but {run.id} knows no such way")
    if len(event.devices) != known.way.size:
        raise IllegalEventError(
            f"{event.task} assigned to devices {event.devices}, but takes {known.way.size}"
        )


def _check_partition(run: Run, key: TaskKey, dataset: Dataset | None) -> None:
    parts = dataset.plan.splits.get(key.split or "", ()) if dataset else ()
    is_train = run.kind == "etl" or key.split == "train"
    if not is_train or not any(part.partition == key.partition for part in parts):
        raise IllegalEventError(f"{key} is no partition that {run.id} could want")
