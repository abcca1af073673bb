"""What is left of a fit run and who is there, as a question to `controller.scaling.autoscaler.forecast`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cerebro.scheduling.beliefs import beliefs
from cerebro.scheduling.dispatch_state import NEVER
from cerebro.state import ExperimentState, Run
from cerebro.state.absences import Frequency
from cerebro.state.tasks import TaskState
from cerebro.state.turnaround import turnaround_s
from controller.decisions.fit_dispatch import FitDispatch
from controller.planning.planner_query import ready
from controller.scaling.autoscaler.forecast import Outlook
from controller.sources.relief import paces, slowness
from controller.sources.replication import making_s

MAX_SUB_EPOCHS = 20_000
"""Beyond so many sub-epochs in an epoch a question takes too long to write down."""


_SIGMA = 0.5
"""Beyond that sub-epochs are of several kinds rather than of one that strays."""


_AWAITED = 3.0
"""A worker that is away for so many times what one takes to be back is not waited for."""


def outlook(
    state: ExperimentState,
    run: Run,
    fit: FitDispatch,
    there: Sequence[str],
    *,
    join_s: float,
    absent: Frequency,
) -> Outlook | None:
    """What is left; `None` while it is not known, or too much.

    Args:
        there: the workers that the run has, see `trainers`.
        join_s: until a worker that is asked for is there.
        absent: how often workers are lost, and how soon they are back.
    """
    told = fit.dispatch_state
    sub_epochs = len(fit.models) * len(fit.partitions)
    estimates = fit.times.estimates
    is_known = estimates.observations >= min(len(fit.models), 2 * len(there))
    is_known = is_known or all(map(estimates.knows, fit.models))
    if not there or not is_known or fit.gang_size > 1 or not run.has_known_end or sub_epochs > MAX_SUB_EPOCHS:
        return None
    chosen = [fit.worker(name) for name in there]
    models_ready, gpus_ready = ready(fit)
    workers = [state.workers[name] for name in there]
    stored = [fit.stored(worker) for worker in workers]
    pace = paces(fit)
    left, ahead = [], []
    for model, mask in enumerate(told.open):
        running = told.running.get(model)
        taken = sum(1 << member.partition for member in running.members) if running else 0
        left.append(mask & ~taken)
        ahead.append(told.epochs[model] - told.epoch[model] if mask else 0)
    if not any(left) and not any(ahead):
        return None
    sigma = estimates.sigma
    believed = beliefs([estimates.shown(model) for model in fit.models], _running(run, fit), sigma=sigma)
    # Estimates are of logarithms. What sub-epochs add up to is their mean, which is more.
    means = [
        math.exp(shift + (min(sigma, _SIGMA) ** 2 + min(doubt, _SIGMA) ** 2) / 2)
        for shift, doubt in zip(believed.shifts, believed.doubts, strict=True)
    ]
    # Nor does a worker take longer than others because its few sub-epochs did: dispatch soon finds that out, a forecast
    # adds it up over all that is left.
    calm = [math.exp(proven - estimated) for estimated, proven in slowness(fit)]
    times = (
        tuple(None if row[w] == NEVER else mean * calm[w] * row[w] for w in chosen)
        for mean, row in zip(means, told.time, strict=True)
    )
    pause_s = turnaround_s(run)
    return Outlook(
        seconds=tuple(times),
        fixed=tuple(tuple(row[w] + pause_s for w in chosen) for row in told.fixed),
        gpus=tuple(told.gpus[w] for w in chosen),
        pace=tuple(pace[w] for w in chosen),
        sizes=told.sizes,
        holders=tuple(
            tuple(w for w, mask in enumerate(stored) if mask >> p & 1) for p in range(len(fit.partitions))
        ),
        left=tuple(left),
        ahead=tuple(ahead),
        model_ready=tuple(models_ready.get(m, 0.0) for m in range(len(fit.models))),
        gpu_ready=tuple(
            gpus_ready[w] if worker.is_alive else (absent.back_s,) * told.gpus[w]
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
    """Model -> logarithm of the seconds per row that its sub-epoch which runs will take at least, on a worker as fast
    as others."""
    found = {}
    for task in run.open.values():
        if task.key.kind != "train" or task.state is not TaskState.RUNNING:
            continue
        model, rows = task.key.model or "", fit.rows[task.key.partition or 0]
        lasted_s = fit.dispatch_state.now - task.attempts[-1].started - fit.times.estimates.fixed_s(model)
        if lasted_s > 0 and rows:
            slowness, _ = fit.times.estimates.slowness(task.attempts[-1].worker)
            found[fit.model(model)] = math.log(lasted_s / rows) - slowness
    return found


def trainers(state: ExperimentState, now: float, absent: Frequency) -> tuple[str, ...]:
    """Workers that train and are there, or were lost a moment ago and will be back, in the order in which they are
    kept: a cluster manager ends those with the highest numbers."""
    since = now - _AWAITED * absent.back_s
    names = [
        w.name
        for w in state.workers.values()
        if w.trains and (w.is_alive or (w.since > since and not w.is_removed))
    ]
    return tuple(sorted(names, key=lambda name: (number_of(name), name)))


def number_of(name: str) -> int:
    """The number at the end of a worker's name, which says when it is taken away."""
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else 0
