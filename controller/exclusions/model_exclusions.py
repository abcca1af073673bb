"""Workers that hold partitions of an idle model and may not train it now. Pure.

Three causes, in this order: too little memory for a sub-epoch; a failed attempt there, if another worker could take
the sub-epoch; an interrupted sub-epoch, which the model continues first on a worker with its partition.
`controller.decisions` calls `feasible_workers` when it places a model. It ignores busy devices and other runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.scheduling.remaining_work import NEVER
from cerebro.state import Run
from cerebro.state.exclusions import Scope
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions.memory_needs import Views, without_memory


def update_memory(run: Run, fit: FitDispatch, views: Views) -> None:
    """Update the dispatch state with the workers that have too little memory for a model."""
    fit.retries.without_memory = {}
    for each in without_memory(run, views) if run.tasks.exhausted else ():
        if each.scope is Scope.MODEL and each.worker in fit.names.workers:
            fit.retries.without_memory.setdefault(fit.names.model(each.name), set()).add(
                fit.names.worker(each.worker)
            )


def feasible_workers(fit: FitDispatch, model: int, now: float) -> set[int]:
    """Return the workers that hold remaining partitions of an idle model and may train it."""
    return _holders(fit, model).difference(*_excluded(fit, model, now))


def _holders(fit: FitDispatch, model: int) -> set[int]:
    state = fit.dispatch_state
    open_, times = state.open[model], state.work.time[model]
    return {w for w, held in enumerate(state.holders.held) if held & open_ and times[w] != NEVER}


def _excluded(fit: FitDispatch, model: int, now: float) -> Iterator[set[int]]:
    state = fit.dispatch_state
    found = _holders(fit, model)
    # Even if no worker remains: an able one is then absent, or the sub-epoch is about to fail.
    short = found.intersection(fit.retries.without_memory.get(model, ()))
    yield short
    found -= short
    tried_at = {
        worker
        for attempts in (fit.retries.out_of_memory, fit.retries.failed_at)
        for partition, workers in attempts.get(model, {}).items()
        if not workers.issuperset(state.holders.of[partition])
        for worker in workers
    }
    # A worker excluded for one sub-epoch may be the only one for another.
    if not tried_at.issuperset(found):
        yield tried_at & found
        found -= tried_at
    for (each, epoch, partition), until in sorted(fit.retries.interrupted.items()):
        if each == model and state.epoch[model] == epoch and state.open[model] >> partition & 1:
            holders = found.intersection(state.holders.of[partition])
            if holders or until > now:
                yield found - holders
                found = holders
