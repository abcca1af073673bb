"""When a device ends what runs on it, and when it is to be given its next task. Pure."""

from __future__ import annotations

import math

from cerebro.state import TaskKey, Worker
from controller.decisions.fit_dispatch import FitDispatch
from controller.projections.sub_epoch_times import technique_of

LOOKAHEAD_S = 1.0
"""The next task is given so long, and the time to load a model, before the present one is expected to end. Earlier, and
a model would be held up in a queue while another worker could train it; later, and the worker would wait for it."""

_SOON_S = 1e-3
"""Sooner than this is now: a wait so short may be lost in the rounding of large clocks."""


def end_of(fit: FitDispatch, worker: Worker, device: int) -> float | None:
    """When the task that runs on a device of the worker is expected to end, by the store's clock; `None` if it is no
    sub-epoch of the run. Of a model that has not run before, or that has failed, of ETL and of audits, nothing is
    expected: then it is never."""
    first = worker.first_in(device)
    key = TaskKey.parse(first) if first else None
    if key is not None and key.kind in ("etl", "trial", "audit"):
        return math.inf
    if key is None or key.kind != "train" or key.run != fit.run:
        return None
    dispatch_state, index = fit.dispatch_state, fit.model(key.model or "")
    sub_epoch = dispatch_state.running.get(index)
    if sub_epoch is None:
        return math.inf
    parallel_plan = (
        fit.parallel_plans.gang_parallel_plan(index) if sub_epoch.others else None
    ) or fit.parallel_plans.of(index, sub_epoch.worker)
    technique, estimates = technique_of(parallel_plan), fit.times.estimates
    if not estimates.knows(fit.models[index], technique):
        return math.inf
    if not sub_epoch.others:
        return sub_epoch.started + dispatch_state.seconds(index, sub_epoch.partition, sub_epoch.worker)
    rows = fit.mean_rows * sum(dispatch_state.sizes[member.partition] for member in sub_epoch.members)
    return sub_epoch.started + estimates.seconds(
        fit.models[index], fit.workers[sub_epoch.worker], rows=rows, technique=technique
    )


def due_s(fit: FitDispatch, worker: Worker, device: int, now: float) -> float:
    """Seconds until a device of the worker is to be given the task after its present one; 0: now."""
    end = end_of(fit, worker, device)
    due_s = end - now - LOOKAHEAD_S - fit.times.load_s if end is not None else 0.0
    return due_s if due_s > _SOON_S else 0.0
