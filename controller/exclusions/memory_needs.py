"""Workers with too little memory for a task, and tasks that no worker has enough memory for. Pure.

A task's need is learned from attempts that ran alone on their worker (`cerebro.state.tasks.memory_need`). A worker's
memory is known if nothing else uses it: the limit of a container, or the memory of a device. Workers with
unknown memory try the task until it has used all its attempts. `controller.decisions` writes the failures (`hopeless`)
and has workers resized (`to_grow`); nothing here resizes a worker or fails a task. ETL and verification are not judged.

A task that needs more than any able worker has fails at once: with the same seed the next attempt needs the
same memory. Able workers include absent ones, which return with the same memory; workers whose memory can, or
might, be raised enough (`controller.exclusions.memory_limits`); quarantined ones, which a person may
release; and workers with the partition in preparation on their volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cerebro.contract.events import TaskGivenUp
from cerebro.contract.parallel_plans import SINGLE, MemoryKind
from cerebro.contract.runs import EvaluateRequest
from cerebro.state import ExperimentState, Run, Task, TaskKey, TaskState, Worker
from cerebro.state.exclusions import Exclusion, Scope
from cerebro.state.tasks.memory_need import USABLE, Lack, has_room
from controller.scaling.cluster_snapshot import ClusterSnapshot, Growth, WorkerView
from controller.sources.parallel_plans import options
from controller.sources.ready_tasks import may_run

_JUDGED_KINDS = frozenset({"train", "valid", "test", "predict"})
_GIB, _STEP_BYTES = 1 << 30, 1 << 28

Views = Mapping[str, WorkerView]


def without_memory(run: Run, views: Views) -> Iterator[Exclusion]:
    """Yield exclusions of workers known to have too little memory for pending tasks of the run.

    A model with such a sub-epoch trains nowhere with too little memory.
    """
    for task in _exhausted_tasks(run):
        is_sub_epoch, model = task.key.kind == "train", task.key.model or ""
        scope, name = (Scope.MODEL, model) if is_sub_epoch else (Scope.TASK, str(task.key))
        for worker in sorted(_too_small(run, task, views)):
            yield Exclusion(
                worker, scope, f"{model or task.key.kind} ran out of memory and needs more", name=name
            )


def hopeless(state: ExperimentState, run: Run, snapshot: ClusterSnapshot) -> Iterator[TaskGivenUp]:
    """Yield failures of tasks that no worker has, or can get, enough memory for."""
    for task, able in _tasks_without_able_worker(state, run, snapshot):
        growth = snapshot.growth
        is_open = not growth.is_known and _is_enough(run, task, growth)
        if not (is_open or _growable_workers(run, task, able, growth) or _is_excluded(run, task, snapshot)):
            reason = _reason(run, task, able, snapshot)
            yield TaskGivenUp(task=str(task.key), attempt=task.attempt, reason=reason)


def to_grow(state: ExperimentState, run: Run, snapshot: ClusterSnapshot) -> set[str]:
    """Return the workers to resize.

    For each task without an able worker, choose the present worker with the most memory that may get enough.
    """
    found = set()
    for task, able in _tasks_without_able_worker(state, run, snapshot):
        growing = _growable_workers(run, task, able, snapshot.growth)
        here = [name for name in growing if snapshot.workers[name].absence is None]
        if here:
            found.add(max(here, key=lambda name: (limit_of(snapshot.workers[name], "host") or 0, name)))
    return found


def _is_excluded(run: Run, task: Task, snapshot: ClusterSnapshot) -> bool:
    """True if an excluded worker could run the task after its release."""
    views = {name: view for name, view in snapshot.excluded_views.items() if _holds(run, view, task.key)}
    return not _too_small(run, task, views).issuperset(views)


def _holds(run: Run, view: WorkerView, key: TaskKey) -> bool:
    """True if an excluded worker runs this kind of task and stores its data. Logs do not list such a worker."""
    if key.kind not in view.kinds or run.plan is None:
        return False
    is_fold = key.kind == "valid" and key.partition is not None
    is_of_train = isinstance(run.request, EvaluateRequest) and run.request.split == "train"
    is_local = key.kind == "train" or is_fold or is_of_train
    held = {(each.dataset, each.partition) for each in view.replicas} if is_local else ()
    return not is_local or (run.plan.dataset, key.partition) in held


def _tasks_without_able_worker(
    state: ExperimentState, run: Run, snapshot: ClusterSnapshot
) -> Iterator[tuple[Task, list[str]]]:
    """Yield tasks that no worker has enough memory for, and the workers that lack only memory."""
    for task in _exhausted_tasks(run):
        able = [
            worker.name
            for worker in state.workers.values()
            if worker.name in snapshot.workers and _could_run(state, run, worker, task.key)
        ]
        is_short = able and _too_small(run, task, snapshot.workers).issuperset(able)
        if is_short and not _has_other_plan(run, task):
            yield task, able


def _growable_workers(run: Run, task: Task, able: Iterable[str], growth: Growth) -> list[str]:
    """Return the workers that may get the memory the task needs."""
    return [name for name in able if name in growth.workers] if _is_enough(run, task, growth) else []


def _is_enough(run: Run, task: Task, growth: Growth) -> bool:
    """True if the maximum limit of a worker is enough."""
    needs = {lack.memory_kind: _need(run, task, lack) for lack in task.lacks}
    return needs.keys() == {"host"} and has_room(growth.max_bytes, needs["host"])


def _exhausted_tasks(run: Run) -> Iterator[Task]:
    """Yield pending tasks of one worker that ran out of memory while alone."""
    for key in run.tasks.exhausted:
        task = run.tasks.by_key[key]
        model = run.models.get(task.key.model or "")
        has_lack = task.lacks and task.key.kind in _JUDGED_KINDS and not task.key.other_partitions
        if has_lack and task.state is TaskState.PENDING and not (model is not None and model.is_cut_short):
            yield task


def _too_small(run: Run, task: Task, views: Views) -> frozenset[str]:
    needs = [(lack.memory_kind, _need(run, task, lack)) for lack in task.lacks]
    return frozenset(
        name
        for name, view in views.items()
        for memory_kind, need in needs
        if (limit := limit_of(view, memory_kind)) is not None and not has_room(limit, need)
    )


def limit_of(view: WorkerView, memory_kind: MemoryKind) -> int | None:
    """Return a worker's memory, or one device's; `None` if unknown."""
    if memory_kind == "host":
        return view.memory_bytes
    return view.device.memory_bytes if view.device is not None else None


def _need(run: Run, task: Task, lack: Lack) -> int:
    model = run.models.get(task.key.model or "") if task.key.kind == "train" else None
    peak_bytes, peak_gpu_bytes = model.peaks if model is not None else (0, 0)
    return lack.need_bytes(peak_bytes if lack.memory_kind == "host" else peak_gpu_bytes)


def _could_run(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    """True if the worker could run the task with enough memory and when present."""
    if worker.is_removed:
        return False
    if key.kind != "train":
        return may_run(state, run, worker, key)
    if not worker.trains or run.plan is None:
        return False
    return (run.plan.dataset, key.partition) in worker.replicas or worker.volume in _preparing_volumes(
        state, run, key
    )


def _preparing_volumes(state: ExperimentState, run: Run, key: TaskKey) -> set[str]:
    """Return volumes with an ETL task for the sub-epoch's partition."""
    assert run.plan is not None
    return {
        state.workers[task.attempts[-1].worker].volume
        for each in state.open_runs()
        if each.plan is not None and each.plan.dataset == run.plan.dataset
        for task in each.tasks.open.values()
        if (task.key.kind, task.key.split, task.key.partition) == ("etl", "train", key.partition)
    }


def _has_other_plan(run: Run, task: Task) -> bool:
    """True if the sub-epoch has another parallel plan besides the last attempt's, which ran out of memory."""
    model = run.models.get(task.key.model or "")
    if task.key.kind != "train" or model is None:
        return False
    return bool(options(run, model, without=task.attempts[-1].parallel_plan or SINGLE))


def _reason(run: Run, task: Task, able: Iterable[str], snapshot: ClusterSnapshot) -> str:
    """Return the need, the available memory and the remedy, for users."""
    views, growth = snapshot.workers, snapshot.growth
    lack = max(task.lacks, key=lambda each: _need(run, task, each))
    need = _need(run, task, lack)
    limits = {name: limit for name in able if (limit := limit_of(views[name], lack.memory_kind)) is not None}
    most = max(limits.values())
    who = ", ".join(sorted(name for name, limit in limits.items() if limit == most)[:3])
    failure_line = task.failure.line if task.failure is not None else "it ran out of memory"
    enough = -(-need / USABLE // _STEP_BYTES) * _STEP_BYTES
    of = "of memory" if lack.memory_kind == "host" else "of the memory of a device"
    key = "worker.resources.worker.limits.memory"
    if growth.max_bytes and not has_room(growth.max_bytes, need):
        key = f"autoscaler.maxMemory ({_gib(growth.max_bytes)}) or {key}"
    cure = (
        f"Raise {key} in the chart's values to {_gib(enough)}, and retry it"
        if lack.memory_kind == "host"
        else f"Give workers devices with {_gib(enough)} (shares of cores: CEREBRO_DEVICE_MEMORY), and retry it"
    )
    return (
        f"{task.key.model or task.key.kind} needs about {_gib(need)} {of}, and the most that a worker which could do "
        f"this has is {_gib(most)} ({who}). {cure}; or use a smaller batch_size or model. It had a worker to itself "
        f"when it ended so: {failure_line}"
    ) + (f" (more could not be had for a worker: {growth.problem})" if growth.problem else "")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.4g}Gi"
