"""Workers that a run leaves alone because of tasks that ran out of memory, its own and other runs' of the experiment.
Pure.

The next attempt of such a task gets a worker for itself, because all of a worker's devices share one memory: nothing
else runs there, or is loaded. Until a worker is idle the one with the fewest open tasks is kept free for it. Where two
runs wait for a worker so, the one that was requested first goes first: each would keep the other one off for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cerebro.state import ExperimentState, Run, RunState, Worker
from controller.fit_dispatch import FitDispatch
from controller.places import Places
from controller.ready_tasks import may_run, ready


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
