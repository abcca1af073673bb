"""By priority score: of the models that could run, the one that is most worth training next, whoever waits.

Hermes (Son et al., Electronics 2021, 10(3), 350) binds a job to a GPU and preempts it every 10 s. Here a job is a model
and a quantum is a sub-epoch, so nothing is preempted, and there is one queue for all workers, since a model hops
anyway. The
makespan is not what these policies are for: good models come sooner, and the last one perhaps later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.convergence import Rule
from cerebro.scheduling.dispatch_state import Choice, DispatchState
from cerebro.scheduling.policies.fifo import Fifo


class ByPriorityScore:
    """The worker with most work left takes the model with the largest `DispatchState.priority_score`; of equals, the
    one with most work left.

    Args:
        rule: whoever drives the dispatch state computes priority scores by it. Where nobody does, models come first in,
            first out.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._without = Fifo()

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """The best sub-epoch of the first worker that has an eligible model."""
        if len(state.priority_score) != len(state.time):
            return self._without.choose(state, workers, rng)
        priority_score, left = state.priority_score, state.model_left
        return _best(state, workers, [*zip(priority_score, left, strict=True)])


class RoundRobin:
    """Every model in turn: the worker with most work left takes the model that has been trained least."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """A sub-epoch, of the first worker that has an eligible model, whose model has the fewest visits behind it."""
        size = len(state.sizes)
        visits = [
            epoch * size - mask.bit_count() for epoch, mask in zip(state.epoch, state.open, strict=True)
        ]
        return _best(state, workers, [(-float(count), 0.0) for count in visits])


def _best(
    state: DispatchState, workers: Sequence[int], worth: Sequence[tuple[float, float]]
) -> Choice | None:
    for worker in sorted(workers, key=state.worker_left.__getitem__, reverse=True):
        found = max(state.eligible(worker), key=lambda each: worth[each[0]], default=None)
        if found is not None:
            model, mask = found
            return Choice(worker, model, (mask & -mask).bit_length() - 1)
    return None
