"""Workers that a run avoids because of tasks that ran out of memory in its experiment. Pure.

The next attempt of such a task has a worker to itself, because a worker's devices share one memory: nothing
else runs or loads there. Until a worker is idle, the one with the fewest open tasks is reserved. If two runs
wait this way, the older one goes first, or each would block the other forever. `controller.decisions`, the task
sources and `controller.sharing.rounds` call it; it starts no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cerebro.state import ExperimentState, Run, RunState, Worker
from cerebro.state.exclusions import Exclusion, Scope
from controller.decisions.device_slots import DeviceSlots
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions.memory_needs import Views, without_memory
from controller.exclusions.model_exclusions import feasible_workers
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sources.ready_tasks import may_run, ready


def exclusions(
    state: ExperimentState, run: Run, fit: FitDispatch | None, slots: DeviceSlots, snapshot: ClusterSnapshot
) -> Iterable[Exclusion]:
    """Return the exclusions of workers that may get no task of `run` now.

    Such a worker has a task that must run alone, or is reserved for another run. `assign` reserves workers
    for tasks of `run`.

    Args:
        fit: dispatch state of the experiment's fit run, if it has one.
        slots: device slots of the alive workers.
        snapshot: the present workers.
    """
    now, views = snapshot.now, snapshot.workers
    found = {
        worker: runs_alone(worker, task.key)
        for each in state.open_runs()
        for task in each.tasks.open.values()
        if task.exhausted and task.key.kind != "train" and (worker := task.worker or "")
    }
    if fit is not None:
        running = fit.dispatch_state.running
        for model in fit.retries.out_of_memory:
            if model in running:
                worker = fit.names.workers[running[model].worker]
                found[worker] = runs_alone(worker, f"{fit.run}/{fit.names.models[model]}")
    running_runs = [each for each in state.going_on() if each.state is RunState.RUNNING]
    if len(running_runs) > 1 or run not in running_runs:
        is_waiting = any(True for _ in waiting(state, run, fit, now, views))
        for other in running_runs:
            if other is run and is_waiting:
                break
            if other is not run:
                for task, able in waiting(state, other, fit, now, views):
                    if name := calmest((w for w in able if w.name not in found), slots):
                        found[name] = reserved(name, task)
    return found.values()


def runs_alone(worker: str, task: object) -> Exclusion:
    """Return the exclusion of a worker that runs a task alone."""
    return Exclusion(worker, Scope.NEW_TASKS, f"{task} ran out of memory and has the worker to itself")


def reserved(worker: str, task: object) -> Exclusion:
    """Return the exclusion of a worker that becomes idle for a task."""
    return Exclusion(worker, Scope.NEW_TASKS, f"reserved for {task}, which ran out of memory and runs alone")


def calmest(workers: Iterable[Worker], slots: DeviceSlots) -> str:
    """Return the first worker with the fewest open tasks; "" without workers."""
    return min((worker.name for worker in workers), key=slots.load, default="")


def waiting(
    state: ExperimentState, run: Run, fit: FitDispatch | None, now: float, views: Views
) -> Iterator[tuple[object, list[Worker]]]:
    """Yield each task of the run that waits to run alone, and the workers that could take it."""
    if not run.tasks.exhausted:
        return
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    short = {(each.name, each.worker) for each in without_memory(run, views)}
    for key in ready(run):
        if run.task(key).exhausted:
            yield key, [w for w in alive if may_run(state, run, w, key) and (str(key), w.name) not in short]
    if fit is None or fit.run != run.id:
        return
    for model in fit.retries.out_of_memory:
        if model not in fit.dispatch_state.running and fit.dispatch_state.open[model]:
            able = feasible_workers(fit, model, now)
            able_workers = [w for w in alive if w.trains and fit.names.worker(w.name) in able]
            yield f"{run.id}/{fit.names.models[model]}", able_workers
