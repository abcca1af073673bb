"""The randomized scheduler of Model Hopper Parallelism (seed paper, section 5.3, algorithm 1)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from controller.scheduling.policy import Choice


class RandomOrder:
    """For an idle worker j, a random unit s(i, j') of Q whose model i is idle and whose partition j' is at j.

    The paper shuffles Q and takes the first eligible unit; one draw among the eligible ones has the same distribution.
    With an availability map (section 5.5) line 10 asks the map, which is what `eligible` was made from. The
    paper serves workers in ascending order; which of two idle workers draws first is random here, so that no
    worker is favoured.
    """

    def choose(
        self, eligible: Mapping[str, Sequence[Choice]], rng: random.Random
    ) -> tuple[str, Choice] | None:
        """See `Policy.choose`."""
        if not eligible:
            return None
        worker = rng.choice(list(eligible))
        return worker, rng.choice(eligible[worker])
