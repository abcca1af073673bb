"""The randomized scheduler of Model Hopper Parallelism (seed paper, section 5.3, algorithm 1)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cerebro.scheduling.dispatch_state import Choice, DispatchState


class RandomOrder:
    """For an idle worker j, a random sub-epoch s(i, j') of Q whose model i is idle and whose partition j' is at j.

    The paper shuffles Q and takes the first eligible sub-epoch; one draw among the eligible ones has the same
    distribution. With an availability map (section 5.5) line 10 asks the map, which is what the dispatch state's masks
    are. The paper serves workers in ascending order; which of two idle workers draws first is random here, so that no
    worker is favoured.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """A sub-epoch drawn from all that are eligible at a random idle worker."""
        waiting = list(workers)
        while waiting:
            worker = waiting.pop(rng.randrange(len(waiting)))
            found = list(state.eligible(worker))
            if found:
                return _draw(worker, found, rng)
        return None


def _draw(worker: int, found: Sequence[tuple[int, int]], rng: random.Random) -> Choice:
    """One of the sub-epochs, each as likely: a model with two partitions here is two sub-epochs."""
    model, mask = rng.choices(found, weights=[mask.bit_count() for _, mask in found])[0]
    partitions = [partition for partition in range(mask.bit_length()) if mask >> partition & 1]
    return Choice(worker, model, rng.choice(partitions))
