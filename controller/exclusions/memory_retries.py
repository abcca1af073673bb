"""Workers that a run leaves alone because of tasks that ran out of memory, its own and other runs' of the experiment.
Pure.

The next attempt of such a task gets a worker for itself, because all of a worker's devices share one memory: nothing
else runs there, or is loaded. Until a worker is idle the one with the fewest open tasks is kept free for it. Where two
runs wait for a worker so, the one that was requested first goes first: each would keep the other one off for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cerebro.scheduling.dispatch_state import NEVER
from cerebro.state import ExperimentState, Run, RunState, Worker
from controller.decisions.fit_dispatch import FitDispatch
from controller.decisions.places import Places
from controller.exclusions.memory_needs import Views, cramped
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sources.ready_tasks import may_run, ready


def see(run: Run, fit: FitDispatch, views: Views) -> None:
    """Have the dispatch state of `run` know which workers have too little memory for a model, as they are now."""
    found: dict[int, frozenset[int]] = {}
    for key, names in cramped(run, views).items() if run.exhausted else ():
        if key.kind == "train":
            model = fit.model(key.model or "")
            known = frozenset(fit.worker(name) for name in names if name in fit.workers)
            found[model] = found.get(model, frozenset()) | known
    fit.cramped = found


def barred(
    state: ExperimentState, run: Run, fit: FitDispatch | None, places: Places, snapshot: ClusterSnapshot
) -> set[str]:
    """Workers that `run` gives nothing now: they have a task that must be alone, or are kept free for one of another
    run. Which ones are kept free for its own tasks is seen when they are given out.

    Args:
        fit: the dispatch state of the experiment's fit run, if there is one.
        places: of the workers that are alive.
        snapshot: the workers as they are.
    """
    now, views = snapshot.now, snapshot.workers
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
        is_waiting = next(waiting(state, run, fit, now, views), None) is not None
        for other in others:
            if other is run and is_waiting:
                break
            if other is not run:
                for able in waiting(state, other, fit, now, views):
                    found |= {calmest((w for w in able if w.name not in found), places)} - {""}
    return found


def calmest(workers: Iterable[Worker], places: Places) -> str:
    """The one with the fewest open tasks, the first of equals; empty if there is none."""
    return min((worker.name for worker in workers), key=places.load, default="")


def allowed(fit: FitDispatch, model: int, now: float) -> set[int]:
    """Workers that hold what an idle model has yet to visit, and that it may go to.

    Not those that have less memory than a sub-epoch of it needs; nor those where one ran out of it, or failed of the
    machine, while another one could take it; and while an interrupted sub-epoch of it has a holder, or waits for one,
    no others, so that it is idle when the holder is.
    """
    dispatch_state = fit.dispatch_state
    open_, times = dispatch_state.open[model], dispatch_state.time[model]
    found = {w for w, held in enumerate(dispatch_state.held) if held & open_ and times[w] != NEVER}
    # Also if that leaves none: who has enough is away then, or the sub-epoch is about to be given up.
    found -= fit.cramped.get(model, frozenset())
    tried_at = {
        worker
        for kept in (fit.memory_retries, fit.shunned)
        for partition, workers in kept.get(model, {}).items()
        if not workers.issuperset(dispatch_state.holders(partition))
        for worker in workers
    }
    # What one sub-epoch is kept off for may be all that is left for another one.
    if not tried_at.issuperset(found):
        found -= tried_at
    for (each, epoch, partition), until in sorted(fit.interrupted.items()):
        if each == model and dispatch_state.epoch[model] == epoch and open_ >> partition & 1:
            holders = found.intersection(dispatch_state.holders(partition))
            if holders or until > now:
                found = holders
    return found


def waiting(
    state: ExperimentState, run: Run, fit: FitDispatch | None, now: float, views: Views
) -> Iterator[list[Worker]]:
    """Of each task of the run that waits to be alone on a worker: the workers that could take it."""
    if not run.exhausted:
        return
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    short = cramped(run, views)
    for key in ready(run):
        if run.task(key).exhausted:
            lacking = short.get(key, frozenset())
            yield [w for w in alive if may_run(state, run, w, key) and w.name not in lacking]
    if fit is None or fit.run != run.id:
        return
    for model in fit.memory_retries:
        if model not in fit.dispatch_state.running and fit.dispatch_state.open[model]:
            able = allowed(fit, model, now)
            yield [w for w in alive if w.trains and fit.worker(w.name) in able]
