"""What is left of a fit run and who is there, as a question to `controller.brain.forecast`. Pure."""

from __future__ import annotations

import math
import re

from cerebro.scheduling.dispatch_state import NEVER
from cerebro.state import ExperimentState, Run
from cerebro.state.absences import Frequency
from controller.advisor.planner_query import ready
from controller.brain.forecast import Outlook
from controller.copies import paces
from controller.fit_dispatch import FitDispatch
from controller.replication import making_s

MAX_UNITS = 20_000
"""Beyond so many units in an epoch a question takes too long to write down."""


_SIGMA = 0.5
"""Beyond that units are of several kinds rather than of one that strays."""


def outlook(
    state: ExperimentState, run: Run, fit: FitDispatch, join_s: float, absent: Frequency
) -> Outlook | None:
    """What is left; `None` while it is not known, or too much.

    Args:
        join_s: until a worker that is asked for is there.
        absent: how often workers are lost, and how soon they are back.
    """
    told = fit.dispatch_state
    there = trainers(state)
    units = len(fit.models) * len(fit.partitions)
    estimates = fit.times.estimates
    is_known = estimates.observations >= min(len(fit.models), 2 * len(there))
    is_known = is_known or all(map(estimates.knows, fit.models))
    if not there or not is_known or fit.gang_size > 1 or not run.has_known_end or units > MAX_UNITS:
        return None
    chosen = [fit.worker(name) for name in there]
    index = {worker: number for number, worker in enumerate(chosen)}
    models_ready, gpus_ready = ready(fit)
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
    # Estimates are means of logarithms. What units add up to is their mean, which is more.
    mean = math.exp(min(sigma, _SIGMA) ** 2 / 2)
    times = (tuple(None if row[w] == NEVER else mean * row[w] for w in chosen) for row in told.time)
    return Outlook(
        seconds=tuple(times),
        fixed=tuple(tuple(row[w] for w in chosen) for row in told.fixed),
        gpus=tuple(told.gpus[w] for w in chosen),
        pace=tuple(pace[w] for w in chosen),
        sizes=told.sizes,
        holders=tuple(
            tuple(index[w] for w in told.holders(p) if w in index) for p in range(len(fit.partitions))
        ),
        left=tuple(left),
        ahead=tuple(ahead),
        model_ready=tuple(models_ready.get(m, 0.0) for m in range(len(fit.models))),
        gpu_ready=tuple(gpus_ready[w] for w in chosen),
        order=tuple(range(len(there))),
        sigma=sigma,
        doubts=tuple(map(estimates.doubt, fit.models)),
        made_s=making_s(state, run),
        join_s=join_s,
        losses_per_s=absent.losses_per_s,
        back_s=absent.back_s,
    )


def trainers(state: ExperimentState) -> list[str]:
    """Workers that train and are there, in the order in which they are kept: a cluster manager ends those with the
    highest numbers."""
    names = [w.name for w in state.workers.values() if w.is_alive and w.trains]
    return sorted(names, key=lambda name: (number_of(name), name))


def number_of(name: str) -> int:
    """The number at the end of a worker's name, which says when it is taken away."""
    found = re.search(r"(\d+)$", name)
    return int(found[1]) if found else 0
