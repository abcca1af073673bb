"""The randomized scheduler of Model Hopper Parallelism (`random`; seed paper, section 5.3, algorithm 1)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.schedule import Placement


class RandomOrder:
    """Chooses a random eligible sub-epoch for an idle worker.

    For worker j, a sub-epoch s(i, j') of Q with model i idle and partition j' at j. The paper shuffles Q and
    takes the first eligible sub-epoch; one random choice among the eligible ones has the same distribution.
    The dispatch state's masks are the availability map of line 10 (section 5.5). The paper serves workers in
    ascending order; here the order is random, so that no worker is favoured.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return a random eligible sub-epoch of a random idle worker."""
        waiting = list(workers)
        while waiting:
            worker = waiting.pop(rng.randrange(len(waiting)))
            found = list(state.eligible(worker))
            if found:
                return _draw(worker, found, rng)
        return None


def _draw(worker: int, found: Sequence[tuple[int, int]], rng: random.Random) -> Placement:
    """Choose a sub-epoch uniformly: a model with two partitions here counts as two sub-epochs."""
    model, mask = rng.choices(found, weights=[mask.bit_count() for _, mask in found])[0]
    partitions = [partition for partition in range(mask.bit_length()) if mask >> partition & 1]
    return Placement(worker, model, rng.choice(partitions))
