"""Policies that choose the model with the highest priority score, or the fewest completed sub-epochs (`RoundRobin`).

Hermes (Son et al., Electronics 2021, 10(3), 350) binds a job to a GPU and compares jobs every 10 s. Here
models hop, so all workers share one queue. Models are compared when a device becomes free; `promising` and
`hermes` also preempt (`controller.decisions.preemption`). Good models finish sooner; the makespan may be
longer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.convergence import Rule
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies.fifo import Fifo
from cerebro.scheduling.schedule import Placement


class ByPriorityScore:
    """Gives the worker with most remaining work the model with the largest `DispatchState.priority_score`.

    Ties go to the model with most remaining work.

    Args:
        rule: rule of the scores. The owner of the dispatch state computes them; without scores, first in,
            first out applies.
        preempts: True if a running model should be preempted for one with a much higher score.
    """

    def __init__(self, rule: Rule, *, preempts: bool = False) -> None:
        self.rule, self.preempts = rule, preempts
        self._without = Fifo()

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return the best sub-epoch of the first worker with an eligible model."""
        if len(state.priority_score) != len(state.work.time):
            return self._without.choose(state, workers, rng)
        priority_score, remaining_work = state.priority_score, state.work.model_left
        return _best(state, workers, [*zip(priority_score, remaining_work, strict=True)])


class RoundRobin:
    """Gives the worker with most remaining work the model with the fewest completed sub-epochs."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return a sub-epoch of the least trained model that some worker can take.

        Workers with more remaining work choose first.
        """
        size = len(state.sizes)
        sub_epochs = [
            epoch * size - mask.bit_count() for epoch, mask in zip(state.epoch, state.open, strict=True)
        ]
        return _best(state, workers, [(-float(count), 0.0) for count in sub_epochs])


def _best(
    state: DispatchState, workers: Sequence[int], worth: Sequence[tuple[float, float]]
) -> Placement | None:
    for worker in sorted(workers, key=state.work.worker_left.__getitem__, reverse=True):
        found = max(state.eligible(worker), key=lambda each: worth[each[0]], default=None)
        if found is not None:
            model, mask = found
            return Placement(worker, model, (mask & -mask).bit_length() - 1)
    return None
