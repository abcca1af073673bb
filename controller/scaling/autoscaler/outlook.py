"""Remaining work and workers of a fit run, as input of `controller.scaling.autoscaler.forecast`. Pure.

The autoscaler calls it in the controller; it reads the state and the dispatch state, and simulates nothing. No outlook
for gangs, for runs without a known end and for more than 20,000 sub-epochs per epoch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cerebro.scheduling.beliefs import beliefs
from cerebro.scheduling.remaining_work import NEVER
from cerebro.state import ExperimentState, Run
from cerebro.state.absences import Frequency
from cerebro.state.reports.turnaround import turnaround_s
from cerebro.state.tasks.task import TaskState
from controller.decisions.fit_dispatch import FitDispatch
from controller.planning.planner_query import ready
from controller.scaling.autoscaler.forecast import Outlook
from controller.sources.relief import paces, slowness
from controller.sources.replication import making_s

MAX_SUB_EPOCHS = 20_000
"""Maximum sub-epochs per epoch; beyond it a request takes too long to build."""

_SIGMA = 0.5
"""Cap of log deviations in the mean: larger ones show different kinds of sub-epochs rather than noise."""

_AWAITED = 3.0
"""A worker absent for this multiple of the usual time is not expected back."""


def outlook(
    state: ExperimentState,
    run: Run,
    fit: FitDispatch,
    there: Sequence[str],
    *,
    join_s: float,
    absent: Frequency,
) -> Outlook | None:
    """Return the remaining work; `None` if unknown or too large.

    Args:
        there: the run's workers; see `trainers`.
        join_s: seconds until a requested worker joins.
        absent: frequency and duration of absences.
    """
    dispatch_state = fit.dispatch_state
    sub_epochs = len(fit.names.models) * len(fit.names.partitions)
    estimates = fit.times.estimates
    is_known = estimates.observations >= min(len(fit.names.models), 2 * len(there))
    is_known = is_known or all(map(estimates.knows, fit.names.models))
    if not there or not is_known or not run.has_known_end or sub_epochs > MAX_SUB_EPOCHS:
        return None
    if (
        fit.gang_size > 1 or fit.has_folds
    ):  # the simulation assumes one partition at a time, and all in each epoch
        return None
    chosen = [fit.names.worker(name) for name in there]
    models_ready, gpus_ready = ready(fit)
    workers = [state.workers[name] for name in there]
    stored = [fit.stored(worker) for worker in workers]
    pace = paces(fit)
    remaining_masks, ahead = [], []
    for model, mask in enumerate(dispatch_state.open):
        running = dispatch_state.running.get(model)
        taken = sum(1 << partition for partition, _ in running.places) if running else 0
        remaining_masks.append(mask & ~taken)
        ahead.append(dispatch_state.epochs[model] - dispatch_state.epoch[model] if mask else 0)
    if not any(remaining_masks) and not any(ahead):
        return None
    sigma = estimates.sigma
    believed = beliefs(
        [estimates.shown(model) for model in fit.names.models], _running(run, fit), sigma=sigma
    )
    # Estimates are logarithmic; the mean of the times themselves is larger.
    means = [
        math.exp(shift + (min(sigma, _SIGMA) ** 2 + min(doubt, _SIGMA) ** 2) / 2)
        for shift, doubt in zip(believed.shifts, believed.doubts, strict=True)
    ]
    # Few sub-epochs do not prove a worker slow: dispatch corrects that soon, but a forecast would add it up.
    proven_ratios = [math.exp(proven - estimated) for estimated, proven in slowness(fit)]
    times = (
        tuple(None if row[w] == NEVER else mean * proven_ratios[w] * row[w] for w in chosen)
        for mean, row in zip(means, dispatch_state.work.time, strict=True)
    )
    pause_s = turnaround_s(run)
    return Outlook(
        seconds=tuple(times),
        fixed=tuple(tuple(row[w] + pause_s for w in chosen) for row in dispatch_state.work.fixed),
        gpus=tuple(dispatch_state.gpus[w] for w in chosen),
        pace=tuple(pace[w] for w in chosen),
        sizes=dispatch_state.sizes,
        holders=tuple(
            tuple(w for w, mask in enumerate(stored) if mask >> p & 1)
            for p in range(len(fit.names.partitions))
        ),
        remaining_partitions=tuple(remaining_masks),
        ahead=tuple(ahead),
        model_ready=tuple(models_ready.get(m, 0.0) for m in range(len(fit.names.models))),
        gpu_ready=tuple(
            gpus_ready[w] if worker.is_alive else (absent.back_s,) * dispatch_state.gpus[w]
            for w, worker in zip(chosen, workers, strict=True)
        ),
        order=tuple(range(len(there))),
        sigma=sigma,
        doubts=believed.doubts,
        shared=believed.shared,
        made_s=making_s(state, run),
        join_s=join_s,
        losses_per_s=absent.losses_per_s,
        back_s=absent.back_s,
    )


def _running(run: Run, fit: FitDispatch) -> dict[int, float]:
    """Return model -> minimum log seconds per row of its running sub-epoch, on an average worker."""
    found = {}
    for task in run.tasks.open.values():
        if task.key.kind != "train" or task.state is not TaskState.RUNNING:
            continue
        model, rows = task.key.model or "", fit.rows[task.key.partition or 0]
        lasted_s = fit.dispatch_state.now - task.attempts[-1].started - fit.times.estimates.fixed_s(model)
        if lasted_s > 0 and rows:
            slowness, _ = fit.times.estimates.slowness(task.attempts[-1].worker)
            found[fit.names.model(model)] = math.log(lasted_s / rows) - slowness
    return found


def trainers(state: ExperimentState, now: float, absent: Frequency) -> tuple[str, ...]:
    """Return training workers that are present or will be back soon, in the order of removal, last first.

    A cluster manager removes the highest numbers first.
    """
    since = now - _AWAITED * absent.back_s
    names = [
        w.name
        for w in state.workers.values()
        if w.trains and (w.is_alive or (w.since > since and not w.is_removed))
    ]
    return tuple(sorted(names, key=lambda name: (number_of(name), name)))


def number_of(name: str) -> int:
    """Return the final number of a worker's name, which decides the order of removal."""
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else 0
