"""First in, first out: what a scheduler does that looks at nothing but the order in which models came."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.dispatch_state import Choice, DispatchState


class Fifo:
    """The first idle worker takes the first model that can use it, on the first partition that is left."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """A sub-epoch of the first idle worker that has an eligible model."""
        for worker in workers:
            for model, mask in state.eligible(worker):
                return Choice(worker, model, (mask & -mask).bit_length() - 1)
        return None
