"""Replica copies that relieve slow workers: dispatch then shares the partition's sub-epochs. Pure.

If only one worker holds a partition and is four times slower than the others, the makespan is four times as
long. With a second replica it is a third longer. The copy is built from rows
(`controller.sources.replication`); no data moves between workers.

A copy must save a tenth of the remaining time, three sub-epochs, and twice the time to make it. Only slowness
that the completed sub-epochs prove counts, so equal workers get no copies by chance. Copies are added one at
a time and stay.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import NamedTuple

from cerebro.scheduling.balance import Balance
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.remaining_work import NEVER
from controller.decisions.fit_dispatch import FitDispatch

_GAIN, _SUB_EPOCHS, _WORTH = 0.1, 3.0, 2.0
"""A copy saves more than this share of the remaining time, these sub-epochs, and this multiple of its making time."""

_CERTAIN = 3.0
"""Standard errors subtracted from a worker's slowness."""

_LOOKED_AT = 4
"""Least loaded helpers considered for each partition."""


class Copy(NamedTuple):
    """A replica of a partition for another worker; indices of a dispatch state."""

    partition: int
    worker: int
    gain_s: float


class RemainingWork(NamedTuple):
    """Remaining work of a fit run for `Balance`, in seconds of an average worker.

    Per partition; per model and sub-epoch; and of a mean sub-epoch.
    """

    work: list[float]
    cost: list[float]
    sub_epoch_s: float


def slowness(fit: FitDispatch) -> list[tuple[float, float]]:
    """Return each worker's log slowness relative to the median: estimated, and proven.

    The estimates follow noise, and the largest of several is always too large.
    """
    estimates = fit.times.estimates
    known = [estimates.slowness(name) for name in fit.names.workers]
    here = [slowness for slowness, sub_epochs in known if sub_epochs]
    typical = statistics.median(here) if here else 0.0
    found = []
    for slowness, sub_epochs in known:
        off = slowness - typical
        doubt = _CERTAIN * estimates.sigma / math.sqrt(sub_epochs) if sub_epochs else NEVER
        found.append((off, math.copysign(max(0.0, abs(off) - doubt), off)))
    return found


def paces(fit: FitDispatch) -> list[float]:
    """Return each worker's proven slowness factor, divided by its number of devices."""
    pairs = zip(slowness(fit), fit.dispatch_state.gpus, strict=True)
    return [math.exp(proven) / gpus for (_, proven), gpus in pairs]


def remaining_work(state: DispatchState) -> RemainingWork:
    """Return the remaining work. Costs a pass over all models, workers and partitions."""
    sizes, cost = state.sizes, []
    for row, fixed in zip(state.work.time, state.work.fixed, strict=True):
        known = [time + extra for time, extra in zip(row, fixed, strict=True) if time != NEVER]
        cost.append(statistics.median(known) if known else 0.0)
    work = [0.0] * len(sizes)
    for seconds, mask, epoch, epochs in zip(cost, state.open, state.epoch, state.epochs, strict=True):
        ahead = epochs - epoch
        for partition, size in enumerate(sizes):
            work[partition] += (ahead + (mask >> partition & 1)) * size * seconds
    return RemainingWork(work, cost, statistics.fmean(cost) if cost else 0.0)


def relief(
    fit: FitDispatch,
    coming: Mapping[int, int],
    helpers: Collection[int],
    made_s: float,
    is_makable: Callable[[int], bool],
) -> Copy | None:
    """Return the copy that saves the most time; `None` if no copy is worthwhile.

    Args:
        coming: partition -> worker that gets a replica now.
        helpers: workers that can get one now.
        made_s: seconds to make a partition.
        is_makable: True if a partition can be made now.
    """
    state = fit.dispatch_state
    if not helpers or not fit.times.estimates.observations:
        return None
    chain, busiest = max(state.work.model_left), max(state.work.worker_left)
    gap_s = busiest - min(state.work.worker_left[worker] for worker in helpers)
    if chain < busiest and gap_s < max(_GAIN * busiest, _WORTH * made_s):
        return None  # a cheap check that nothing can be saved
    pace, what = paces(fit), remaining_work(state)
    holders = [state.holders.of[partition] for partition in range(len(what.work))]
    for partition, worker in coming.items():
        holders[partition] = (*holders[partition], worker)
    balance = Balance(what.work, pace, holders)
    # The same for every partition, except for its holders.
    calmest = sorted(helpers, key=lambda w: (balance.loads[w], w))
    best: Copy | None = None
    for partition in range(len(holders)):
        if not state.holders.of[partition] or not is_makable(partition):
            continue
        able = (w for w in calmest if w not in holders[partition])
        present_makespan_s = max(balance.level(partition), chain)
        for worker in islice(able, _LOOKED_AT):
            level = balance.level_with(partition, worker)
            least_s = max(
                _GAIN * present_makespan_s, _SUB_EPOCHS * what.sub_epoch_s * pace[worker], _WORTH * made_s
            )
            if present_makespan_s - level <= least_s:
                continue  # the serial chain of a model can only reduce it
            new_makespan_s = max(
                level, chain if level >= chain else _chain(state, what, pace, partition, worker)
            )
            gain_s = present_makespan_s - new_makespan_s
            if gain_s > least_s and (best is None or gain_s > best.gain_s):
                best = Copy(partition, worker, gain_s)
    return best


def _chain(
    state: DispatchState, what: RemainingWork, pace: list[float], partition: int, worker: int
) -> float:
    """Return the longest remaining chain of a model's sub-epochs if the worker held the partition too."""
    sooner = (
        max(0.0, min(pace[w] for w in state.holders.of[partition]) - pace[worker]) * state.sizes[partition]
    )
    if not sooner:
        return max(state.work.model_left)
    return max(
        seconds - (epochs - epoch + (mask >> partition & 1)) * cost * sooner
        for seconds, mask, epoch, epochs, cost in zip(
            state.work.model_left, state.open, state.epoch, state.epochs, what.cost, strict=True
        )
    )
