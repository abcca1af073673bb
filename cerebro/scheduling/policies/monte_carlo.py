"""Monte-Carlo simulation (`monte-carlo`): simulates the rest of the run and takes the best first step.

Thesis, section 4.2.2. The first simulation is critical first. The others add noise to the remaining work of
models and workers, which changes the order of near-equals. A decision differs from critical first only if
another first step ended sooner. Better than a random order (the thesis's); better than critical first if
models are not many more than workers, at a hundred times the computation.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies.critical_first import TOLERANCE, CriticalFirst
from cerebro.scheduling.schedule import Placement

DRY_RUNS = 8
"""Maximum number of simulations for a decision."""

MAX_SUB_EPOCHS = 2_000
"""Maximum number of simulated sub-epochs for a decision.

If fewer than two simulations fit, critical first decides.
"""

_BLUR = 1.0
"""Standard deviation of the noise on remaining work, in sub-epochs of average length."""


class MonteCarlo:
    """Takes the first step of the best of several simulations."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return the first sub-epoch of the shortest simulation."""
        policy = CriticalFirst()
        best = policy.choose(state, workers, rng)
        sub_epochs = _sub_epochs_left(state)
        runs = min(DRY_RUNS, MAX_SUB_EPOCHS // max(1, sub_epochs))
        if best is None or runs < 2:
            return best
        least, bound, mean = _play(state.copy(), best), _bound(state), sum(state.work.model_left) / sub_epochs
        for _ in range(runs - 1):
            if least <= bound * (1 + TOLERANCE):
                break
            blurred = state.copy()
            blurred.work.model_left = [work + rng.gauss(0.0, _BLUR * mean) for work in state.work.model_left]
            blurred.work.worker_left = [
                work + rng.gauss(0.0, _BLUR * mean) for work in state.work.worker_left
            ]
            choice = policy.choose(blurred, workers, rng)
            end = _play(blurred, choice) if choice else least
            if choice and end < least * (1 - TOLERANCE):
                best, least = choice, end
        return best


def _sub_epochs_left(state: DispatchState) -> int:
    later = sum(last - epoch for last, epoch in zip(state.epochs, state.epoch, strict=True)) * len(
        state.sizes
    )
    return later + sum(mask.bit_count() for mask in state.open)


def _remaining(state: DispatchState, model: int) -> float:
    """Return the remaining seconds of the running sub-epoch.

    For a model that is not ready, `start` is its ready time.
    """
    worker, _, partition, _, start, *_ = state.running[model]
    seconds = state.seconds(model, partition, worker) if worker >= 0 else 0.0
    return max(0.0, start + seconds - state.now)


def _bound(state: DispatchState) -> float:
    """Return a lower bound on the remaining seconds.

    The longest work of a model or worker. Workers are ignored if replicas or several GPUs let others share
    their work.
    """
    models, workers = list(state.work.model_left), list(state.work.worker_left)
    for worker, model, partition, *_ in state.running.values():
        if worker >= 0:
            spent = state.seconds(model, partition, worker) - _remaining(state, model)
            models[model] -= spent
            workers[worker] -= spent
    is_plain = all(len(state.holders.of[p]) <= 1 for p in range(len(state.sizes))) and max(state.gpus) <= 1
    return max(*models, *workers) if is_plain else max(models)


def _play(state: DispatchState, first: Placement) -> float:
    """Simulate the rest on this state, critical first; return the remaining seconds.

    Sub-epochs on partitions without holders are omitted: no first step makes them end sooner.
    """
    ends = [(_remaining(state, model), model) for model in state.running]
    heapq.heapify(ends)
    policy, rng, now = CriticalFirst(), random.Random(0), 0.0
    choice: Placement | None = first
    while True:
        while choice:
            state.start(choice)
            seconds = state.seconds(choice.model, choice.partition, choice.worker)
            heapq.heappush(ends, (now + seconds, choice.model))
            idle = [worker for worker, gpus in enumerate(state.free) if gpus]
            choice = policy.choose(state, idle, rng) if idle else None
        if not ends:
            return now
        now = ends[0][0]
        while ends and ends[0][0] <= now * (1 + TOLERANCE):
            _finish(state, heapq.heappop(ends)[1])
        idle = [worker for worker, gpus in enumerate(state.free) if gpus]
        choice = policy.choose(state, idle, rng)


def _finish(state: DispatchState, model: int) -> None:
    if state.running[model].worker >= 0:
        state.finish(model)
    else:
        del state.running[model]
