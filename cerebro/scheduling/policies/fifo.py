"""First in, first out (`fifo`): models train in the order of creation. `ByPriorityScore` uses it without scores."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.schedule import Placement


class Fifo:
    """Gives the first idle worker the first eligible model, on its first open partition."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return a sub-epoch of the first idle worker with an eligible model."""
        for worker in workers:
            for model, mask in state.eligible(worker):
                return Placement(worker, model, (mask & -mask).bit_length() - 1)
        return None
