"""Follows a plan: workers and models keep its order, and wait for each other.

A plan gives the order of sub-epochs and their approximate times. Both workers and models keep the order: if
only workers did, an early one would take a model before another worker's turn, and a tight plan would fail (a
Latin square of 16 near-equal models: 1.44 times the bound instead of 1.00).

Sub-epochs that are complete, of dropped models or on lost workers are skipped. Waiting is limited: if the
next sub-epoch is late, the worker runs a later one of its list, or one outside the plan, chosen by a dispatch
policy. The policy is stateless: the dispatch state shows the progress, so a restarted controller continues
the same plan.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cerebro.scheduling.dispatch_state import Choice, DispatchState
from cerebro.scheduling.policies.critical_first import CriticalFirst
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.schedule import Schedule

_MAX_DELAY = 0.3
"""Maximum start delay, as a share of the sub-epoch, before its worker runs another one.

A tight plan needs waits as long as its noise; longer waits mean that the run differs from the plan.
"""


class Entry(NamedTuple):
    """A sub-epoch of a plan."""

    worker: int
    model: int
    epoch: int
    partition: int
    start: float = math.inf
    """Planned start by the dispatch state's clock; infinity waits without limit."""


class Following:
    """Follows a plan.

    Args:
        order: sub-epochs of all workers by planned start, which determines each worker's and each model's
            order.
        fallback: decides on sub-epochs outside the plan, or planned on workers that lost the partition.
            Default: critical first.
    """

    def __init__(self, order: Iterable[Entry], *, fallback: Policy | None = None) -> None:
        self._order = tuple(order)
        self._fallback = fallback or CriticalFirst()
        self._of_worker: dict[int, list[Entry]] = defaultdict(list)
        self._of_model: dict[tuple[int, int], list[Entry]] = defaultdict(list)
        for entry in self._order:
            self._of_worker[entry.worker].append(entry)
            self._of_model[entry.model, entry.epoch].append(entry)

    @classmethod
    def of(cls, schedule: Schedule, *, fallback: Policy | None = None) -> Following:
        """Follow a schedule. With the planned times, the run ends no later than the schedule."""
        order = (
            Entry(sub_epoch.worker, sub_epoch.model, sub_epoch.epoch, sub_epoch.partition, sub_epoch.start)
            for sub_epoch in schedule.sub_epochs
        )
        return cls(order, fallback=fallback)

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """Return the next planned sub-epoch; the fallback decides on others."""
        free = []
        for worker in workers:
            ahead = (entry for entry in self._of_worker.get(worker, ()) if _is_ahead(state, entry))
            due = next(ahead, None)
            if due is not None and not self._is_startable(state, due):
                if not _is_late(state, due):
                    continue
                due = next((entry for entry in ahead if self._is_startable(state, entry)), None)
            if due is not None:
                return Choice(worker, due.model, due.partition)
            free.append(worker)
        return self._unplanned(state, free, rng) if free else None

    def _is_startable(self, state: DispatchState, entry: Entry) -> bool:
        """Return whether the model is idle and this worker is its next one."""
        worker, model, epoch, _, _ = entry
        if (
            epoch != state.epoch[model]
            or model in state.running
            or state.need[model][worker] > state.free[worker]
        ):
            return False
        visits = self._of_model[model, epoch]
        return next(visit for visit in visits if _is_ahead(state, visit)) == entry

    def _unplanned(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """Ask the fallback for a sub-epoch outside the plan."""
        rest = state.copy()
        for entry in self._order:
            if entry.epoch == state.epoch[entry.model] and _is_ahead(state, entry):
                rest.open[entry.model] &= ~(1 << entry.partition)
        return self._fallback.choose(rest, workers, rng)


def _is_late(state: DispatchState, entry: Entry) -> bool:
    sub_epoch_s = state.seconds(entry.model, entry.partition, entry.worker)
    return state.now > entry.start + _MAX_DELAY * sub_epoch_s


def _is_ahead(state: DispatchState, entry: Entry) -> bool:
    """Return whether the sub-epoch has not started and can run on its worker."""
    worker, model, epoch, partition, _ = entry
    present, mask = state.epoch[model], state.open[model]
    if epoch < present or not mask or not state.held[worker] >> partition & 1:
        return False
    if epoch > present:
        return True
    running = state.running.get(model)
    return bool(mask >> partition & 1) and (running is None or running.partition != partition)
