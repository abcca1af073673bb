"""Policy that follows a plan: workers and models keep its order, and wait for each other.

The controller uses it while a run has a plan (`SchedulePlanned`); users cannot select it.

A plan gives the order of sub-epochs and their approximate times. Both workers and models keep the order: if
only workers did, an early one would take a model before another worker's turn, and a tight plan would fail (a
Latin square of 16 near-equal models: 1.44 times the bound instead of 1.00).

Sub-epochs that are complete, of dropped models or on lost workers are skipped. Waiting is limited: if the
next sub-epoch is late, the worker runs a later one of its list, or one outside the plan, chosen by a dispatch
policy. The policy is stateless: the dispatch state shows the progress, so a restarted controller continues
the same plan.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies.critical_first import CriticalFirst
from cerebro.scheduling.schedule import Placement, Schedule

_MAX_DELAY = 0.3
"""Maximum start delay, as a share of the sub-epoch, before its worker runs another one.

A tight plan needs waits as long as its noise; longer waits mean that the run differs from the plan.
"""


class Following:
    """Follows a plan, and goes critical first with sub-epochs outside the plan or on workers that lost the partition.

    Args:
        order: sub-epochs of all workers by planned start, which determines each worker's and each model's
            order. `start` is by the dispatch state's clock; infinity waits without limit.
    """

    def __init__(self, order: Iterable[Placement]) -> None:
        self._order = tuple(order)
        self._fallback = CriticalFirst()
        self._of_worker: dict[int, list[Placement]] = defaultdict(list)
        self._of_model: dict[tuple[int, int], list[Placement]] = defaultdict(list)
        for entry in self._order:
            self._of_worker[entry.worker].append(entry)
            self._of_model[entry.model, entry.epoch].append(entry)

    @classmethod
    def of(cls, schedule: Schedule) -> Following:
        """Follow a schedule. With the planned times, the run ends no later than the schedule."""
        return cls(schedule.sub_epochs)

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
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
                return Placement(worker, due.model, due.partition)
            free.append(worker)
        return self._unplanned(state, free, rng) if free else None

    def _is_startable(self, state: DispatchState, entry: Placement) -> bool:
        """Return whether the model is idle and this worker is its next one."""
        worker, model, _, epoch, *_ = entry
        if (
            epoch != state.epoch[model]
            or model in state.running
            or state.work.need[model][worker] > state.free[worker]
        ):
            return False
        sub_epochs = self._of_model[model, epoch]
        return next(sub_epoch for sub_epoch in sub_epochs if _is_ahead(state, sub_epoch)) == entry

    def _unplanned(
        self, state: DispatchState, workers: Sequence[int], rng: random.Random
    ) -> Placement | None:
        """Ask the fallback for a sub-epoch outside the plan."""
        rest = state.copy()
        for entry in self._order:
            if entry.epoch == state.epoch[entry.model] and _is_ahead(state, entry):
                rest.open[entry.model] &= ~(1 << entry.partition)
        return self._fallback.choose(rest, workers, rng)


def _is_late(state: DispatchState, entry: Placement) -> bool:
    sub_epoch_s = state.seconds(entry.model, entry.partition, entry.worker)
    return state.now > entry.start + _MAX_DELAY * sub_epoch_s


def _is_ahead(state: DispatchState, entry: Placement) -> bool:
    """Return whether the sub-epoch has not started and can run on its worker."""
    worker, model, partition, epoch, *_ = entry
    present, mask = state.epoch[model], state.open[model]
    if epoch < present or not mask or not state.holders.held[worker] >> partition & 1:
        return False
    if epoch > present:
        return True
    running = state.running.get(model)
    return bool(mask >> partition & 1) and (running is None or running.partition != partition)
