"""Which workers have less memory than a task needs that ran out of it, and which tasks nobody has enough for. Pure.

What a task needs is learned by attempts that had their worker to themselves (`cerebro.state.memory`). What a worker has
is known where nobody else takes of it: of a container the limit, of a device its memory. Where that is not known the
task is tried there, until the run's attempts are used up.

A task that needs more than any worker has that could do it is given up at once: with the same seed the next attempt
takes as many bytes. A worker that is away for now counts, because it comes back with the memory that it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cerebro.contract.events import TaskGivenUp
from cerebro.contract.ways import SINGLE, MemoryPlace
from cerebro.state import ExperimentState, Run, Task, TaskKey, TaskState, Worker
from cerebro.state.memory import USABLE, Lack, has_room
from controller.cluster_snapshot import WorkerView
from controller.ready_tasks import may_run
from controller.ways import options

_JUDGED = frozenset({"train", "valid", "test", "predict"})
_GIB, _STEP_BYTES = 1 << 30, 1 << 28

Views = Mapping[str, WorkerView]


def cramped(run: Run, views: Views) -> dict[TaskKey, frozenset[str]]:
    """Tasks of the run that are to be done once more -> workers that are known to have too little memory."""
    return {task.key: _short(run, task, views) for task in _judged(run)}


def hopeless(state: ExperimentState, run: Run, views: Views) -> Iterator[TaskGivenUp]:
    """Tasks that no worker has the memory for, to be given up."""
    for task in _judged(run):
        able = [w for w in state.workers.values() if w.name in views and _can(state, run, w, task.key)]
        short = _short(run, task, views)
        if able and short.issuperset(worker.name for worker in able) and not _has_other_way(run, task):
            reason = _reason(run, task, [worker.name for worker in able], views)
            yield TaskGivenUp(task=str(task.key), attempt=task.attempt, reason=reason)


def _judged(run: Run) -> Iterator[Task]:
    """What ran out of memory alone, waits for another attempt, and is done by one worker."""
    for key in run.exhausted:
        task = run.tasks[key]
        model = run.models.get(task.key.model or "")
        is_told = task.lacks and task.key.kind in _JUDGED and not task.key.others
        if is_told and task.state is TaskState.PENDING and not (model is not None and model.is_cut_short):
            yield task


def _short(run: Run, task: Task, views: Views) -> frozenset[str]:
    needs = [(lack.place, _need(run, task, lack)) for lack in task.lacks]
    return frozenset(
        name
        for name, view in views.items()
        for place, need in needs
        if (limit := limit_of(view, place)) is not None and not has_room(limit, need)
    )


def limit_of(view: WorkerView, place: MemoryPlace) -> int | None:
    """How much memory a worker has, of its own or of each device; `None`: that is not known."""
    if place == "host":
        return view.memory_bytes
    return view.device.memory_bytes if view.device is not None else None


def _need(run: Run, task: Task, lack: Lack) -> int:
    model = run.models.get(task.key.model or "") if task.key.kind == "train" else None
    visits = model.visits if model is not None else ()
    peaks = (each.peak_bytes if lack.place == "host" else each.peak_gpu_bytes for each in visits)
    return lack.need_bytes(max(peaks, default=0))


def _can(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    """Whether the worker could do it if it had the memory, and were there."""
    if worker.is_removed:
        return False
    if key.kind != "train":
        return may_run(state, run, worker, key)
    return worker.trains and run.plan is not None and (run.plan.dataset, key.partition) in worker.holdings


def _has_other_way(run: Run, task: Task) -> bool:
    """Whether a unit could be done by another way than the one that ran out of memory."""
    model = run.models.get(task.key.model or "")
    if task.key.kind != "train" or model is None:
        return False
    last = (task.attempts[-1].way or SINGLE).label
    return any(way.label != last for way in options(run, model))


def _reason(run: Run, task: Task, able: Iterable[str], views: Views) -> str:
    """For people: what it needs, what there is, and what to raise."""
    lack = max(task.lacks, key=lambda each: _need(run, task, each))
    need = _need(run, task, lack)
    limits = {name: limit for name in able if (limit := limit_of(views[name], lack.place)) is not None}
    most = max(limits.values())
    who = ", ".join(sorted(name for name, limit in limits.items() if limit == most)[:3])
    told = task.failure.line if task.failure is not None else "it ran out of memory"
    enough = -(-need / USABLE // _STEP_BYTES) * _STEP_BYTES
    of = "of memory" if lack.place == "host" else "of the memory of a device"
    cure = (
        f"Raise worker.resources.worker.limits.memory in the chart's values to {_gib(enough)}, and retry it"
        if lack.place == "host"
        else f"Give workers devices with {_gib(enough)} (shares of cores: CEREBRO_DEVICE_MEMORY), and retry it"
    )
    return (
        f"{task.key.model or task.key.kind} needs about {_gib(need)} {of}, and the most that a worker which could do "
        f"this has is {_gib(most)} ({who}). {cure}; or use a smaller batch_size or model. It had a worker to itself "
        f"when it ended so: {told}"
    )


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.4g}Gi"
