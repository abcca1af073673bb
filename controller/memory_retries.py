"""Workers that a run leaves alone because of tasks that ran out of memory, its own and other runs' of the experiment.
Pure.

The next attempt of such a task gets a worker for itself, because all of a worker's devices share one memory: nothing
else runs there, or is loaded. Until a worker is idle the one with the fewest open tasks is kept free for it. Where two
runs wait for a worker so, the one that was requested first goes first: each would keep the other one off for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state import ExperimentState, Run, RunState, TaskKey, TaskState, Worker
from controller.fit_dispatch import FitDispatch
from controller.places import Places


def barred(state: ExperimentState, run: Run, fit: FitDispatch | None, places: Places) -> set[str]:
    """Workers that `run` gives nothing now: they have a task that must be alone, or are kept free for one of another
    run. Which ones are kept free for its own tasks is seen when they are given out.

    Args:
        fit: the dispatch state of the experiment's fit run, if there is one.
        places: of the workers that are alive.
    """
    found = {
        task.worker or ""
        for each in state.open_runs()
        for task in each.open.values()
        if task.exhausted and task.key.kind != "train"
    }
    if fit is not None:
        running = fit.dispatch_state.running
        found |= {fit.workers[running[model].worker] for model in fit.memory_retries if model in running}
    others = [each for each in state.going_on() if each.state is RunState.RUNNING]
    if len(others) > 1 or run not in others:
        is_waiting = next(waiting(state, run, fit), None) is not None
        for other in others:
            if other is run and is_waiting:
                break
            if other is not run:
                for able in waiting(state, other, fit):
                    found |= {calmest((w for w in able if w.name not in found), places)} - {""}
    return found


def calmest(workers: Iterable[Worker], places: Places) -> str:
    """The one with the fewest open tasks, the first of equals; empty if there is none."""
    return min((worker.name for worker in workers), key=places.load, default="")


def may_run(state: ExperimentState, run: Run, worker: Worker, key: TaskKey) -> bool:
    """Whether a worker can do a task of the run that is no unit of training."""
    if key.kind not in worker.kinds:
        return False
    plan = run.plan
    if key.kind == "etl":
        made = state.datasets[plan.dataset].plan if plan else None
        parts = made.splits.get(key.split or "", ()) if made else ()
        owner = next((part.worker for part in parts if part.partition == key.partition), "")
        return owner == worker.name or owner not in state.workers or state.workers[owner].is_removed
    if not isinstance(plan, EvaluatePlan) or not isinstance(run.request, EvaluateRequest):
        return True
    # The data of a test or prediction on `train` lies on the worker that made it; the other splits are shared.
    return run.request.split != "train" or (plan.dataset, key.partition or 0) in worker.holdings


def ready(run: Run) -> Iterator[TaskKey]:
    """What is to be done and needs no model to be idle: ETL, validation, test, prediction."""
    if run.kind != "fit":
        yield from (task.key for task in run.counts.pending.values() if task.state is TaskState.PENDING)
    for name in run.counts.in_order(run.counts.unvalidated):
        model = run.models[name]
        for epoch in range(1, model.completed_epochs + 1):
            if epoch not in model.validations and epoch not in model.unreadable:
                task = run.validation(model, epoch)
                if task.state is TaskState.PENDING:
                    yield task.key


def waiting(state: ExperimentState, run: Run, fit: FitDispatch | None) -> Iterator[list[Worker]]:
    """Of each task of the run that waits to be alone on a worker: the workers that could take it."""
    if not run.exhausted:
        return
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    for key in ready(run):
        if run.task(key).exhausted:
            yield [worker for worker in alive if may_run(state, run, worker, key)]
    if fit is None or fit.run != run.id:
        return
    dispatch_state = fit.dispatch_state
    for model in fit.memory_retries:
        if model not in dispatch_state.running and (needed := dispatch_state.open[model]):
            yield [w for w in alive if w.trains and dispatch_state.held[fit.worker(w.name)] & needed]
