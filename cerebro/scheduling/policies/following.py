"""Follows a plan: workers run their sub-epochs in order, models make their visits in order, and either waits for the
other.

A plan gives the order of sub-epochs, and roughly their times. Both orders are kept: where only workers keep theirs, one
that is early takes a model ahead of its turn elsewhere, and a tight plan falls apart (a Latin square of 16 near-equal
models: 1.44 times the bound instead of 1.00).

What has come about otherwise (a sub-epoch that is done, a model that was dropped, a worker that was lost) is passed
over.
Nobody waits long for what is late: meanwhile a worker runs what comes later in its list, or what the plan does not
cover, which is left to a dispatch policy. Nothing is remembered: where the plan stands is read off the dispatch state,
so a controller that is restarted goes on with the same plan.
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
"""Share of a sub-epoch by which it may start later than planned before its worker runs another one meanwhile. A tight
plan needs waits as long as its noise; where one would wait longer, things have come about otherwise than planned."""


class Entry(NamedTuple):
    """A sub-epoch of a plan."""

    worker: int
    model: int
    epoch: int
    partition: int
    start: float = math.inf
    """When it was to start, by the dispatch state's clock; infinite: it is waited for, however long."""


class Following:
    """Follows a plan.

    Args:
        order: its sub-epochs as they were to start, all workers together: that is each worker's order and each model's.
        fallback: decides on sub-epochs that the plan does not cover, or only on workers that no longer hold the
            partition; critical first if left out.
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
        """Follows a schedule. Where sub-epochs take what they were to take, it ends no later than the schedule."""
        order = (
            Entry(sub_epoch.worker, sub_epoch.model, sub_epoch.epoch, sub_epoch.partition, sub_epoch.start)
            for sub_epoch in schedule.sub_epochs
        )
        return cls(order, fallback=fallback)

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """The next planned sub-epoch; what the plan does not cover is dispatched by the fallback."""
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
        """Whether the model is there, and it is this worker's turn among its own."""
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
        """What the fallback makes of the sub-epochs that are not planned."""
        rest = state.copy()
        for entry in self._order:
            if entry.epoch == state.epoch[entry.model] and _is_ahead(state, entry):
                rest.open[entry.model] &= ~(1 << entry.partition)
        return self._fallback.choose(rest, workers, rng)


def _is_late(state: DispatchState, entry: Entry) -> bool:
    sub_epoch_s = state.seconds(entry.model, entry.partition, entry.worker)
    return state.now > entry.start + _MAX_DELAY * sub_epoch_s


def _is_ahead(state: DispatchState, entry: Entry) -> bool:
    """Whether the sub-epoch is yet to be started, and can be on its worker."""
    worker, model, epoch, partition, _ = entry
    present, mask = state.epoch[model], state.open[model]
    if epoch < present or not mask or not state.held[worker] >> partition & 1:
        return False
    if epoch > present:
        return True
    running = state.running.get(model)
    return bool(mask >> partition & 1) and (running is None or running.partition != partition)
