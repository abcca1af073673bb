"""The next training sub-epoch: interrupted ones first, then the choice of the run's policy. Pure.

An interrupted sub-epoch restarts as soon as its model is idle and a worker with the partition has room. While such a
worker is alive, the model trains nowhere else. A run has hundreds of sub-epochs, so this hardly changes the makespan,
and a user who loses a worker sees its sub-epoch continue at once. A sub-epoch with a savepoint also waits for an absent
worker with the partition, because the savepoint is useless after the model has trained elsewhere. It waits at most for
the time it had been trained. Policies that preempt choose interrupted sub-epochs by priority score like all others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES, CriticalFirst, Policy
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from controller.decisions.assignment_draft import DispatchDraft
from controller.decisions.fit_dispatch import FitDispatch

Choose = Callable[[list[int]], Placement | None]
"""Chooses a sub-epoch for one of these workers; `None` without any."""


class SubEpochChoice:
    """Chooses model, partition and worker of sub-epochs, from the dispatch state as this decision has changed it.

    Callers: `controller.sources.training` starts the chosen sub-epochs; `controller.decisions.queue_corrections`
    revokes queued ones for which it would choose an idle worker now.
    """

    def __init__(
        self, fit: FitDispatch, dispatch_draft: DispatchDraft, rng: random.Random, now: float
    ) -> None:
        self._fit, self._dispatch_draft, self._rng, self._now = fit, dispatch_draft, rng, now

    def policy(self) -> Policy:
        """Return the deciding policy."""
        # A plan does not know about workers that a model is kept off.
        return self._fit.dispatch if self._dispatch_draft.has_excluded else self._fit.policy

    def choose(self, workers: list[int]) -> Placement | None:
        """Choose a sub-epoch for one of these workers; `None` without any."""
        if self._fit.preempts:
            return self._at_savepoint(self._by_policy(workers))
        return self.interrupted(workers) or self._by_policy(workers)

    def in_turn(self) -> Choose:
        """Return a function like `choose`, for repeated calls with shrinking sets of workers."""
        policy = self.policy()
        if not isinstance(policy, CriticalFirst):
            return self.choose
        dispatch_state = self._fit.dispatch_state
        ahead: Iterator[Placement] = iter(())

        def choose(workers: list[int]) -> Placement | None:
            nonlocal ahead
            interrupted = self.interrupted(workers)
            if interrupted is not None:
                return interrupted
            for choice in ahead:
                is_kept_off = dispatch_state.work.time[choice.model][choice.worker] == NEVER
                if (
                    choice.worker in workers
                    and choice.model not in dispatch_state.running
                    and not is_kept_off
                ):
                    return choice
            ahead = policy.choices(dispatch_state, tuple(workers))
            return next(ahead, None)

        return choose

    def interrupted(self, workers: list[int]) -> Placement | None:
        """Choose an interrupted sub-epoch, on the suitable worker with the least remaining training."""
        dispatch_state = self._fit.dispatch_state
        for model, partition, holders in self.bound():
            able = [w for w in holders if w in workers]
            if able:
                return Placement(
                    min(able, key=lambda w: (dispatch_state.work.worker_left[w], w)), model, partition
                )
        return None

    def bound(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (model, partition, suitable workers) of open interrupted sub-epochs of idle models.

        Includes sub-epochs that have no suitable worker yet but still wait for one.
        """
        dispatch_state = self._fit.dispatch_state
        for (model, epoch, partition), until in sorted(self._fit.retries.interrupted.items()):
            is_open = dispatch_state.epoch[model] == epoch and dispatch_state.open[model] >> partition & 1
            holders = [
                w for w in dispatch_state.holders.of[partition] if dispatch_state.work.time[model][w] != NEVER
            ]
            if is_open and (holders or until > self._now) and model not in dispatch_state.running:
                yield model, partition, holders

    def _at_savepoint(self, choice: Placement | None) -> Placement | None:
        """Continue the model's interrupted sub-epoch, if it has one, instead of starting another one."""
        if choice is None:
            return None
        for model, partition, holders in self.bound():
            if model == choice.model and choice.worker in holders:
                return choice._replace(partition=partition)
        return choice

    def _by_policy(self, workers: list[int]) -> Placement | None:
        dispatch_state, rng = self._fit.dispatch_state, self._rng
        choice = self.policy().choose(dispatch_state, workers, rng)
        if choice is None and not dispatch_state.running:
            # Nothing is running, so the policy has no end to wait for.
            return POLICIES[DEFAULT_POLICY].choose(dispatch_state, workers, rng)
        return choice
