"""The interface of a dispatch policy: which sub-epoch goes to which worker next, decided anew at every event.

A policy chooses among what `DispatchState.eligible` yields, so it cannot break an invariant; and it is asked again at
the next event, so it needs no memory and survives the loss of a worker, or of the controller, by being asked again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from cerebro.scheduling.dispatch_state import Choice, DispatchState


class Policy(Protocol):
    """Chooses one sub-epoch at a time: of the highest priority of which one could begin, by its own rule among these.

    A priority is a preference, never a wait. Where several workers are idle, one may begin a sub-epoch of a lower
    priority than it could, so that another one, which has no choice, begins the higher one.

    Must be pure: the same dispatch state, workers and generator state give the same choice, and the dispatch state is
        left as it was. The
    caller starts the sub-epoch on the dispatch state and asks again with the workers that are left, until the answer is
    `None`.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """An eligible sub-epoch for one of `workers`, or `None`: nothing is eligible, or it is better to wait.

        A policy that waits is asked again when a running sub-epoch ends; while nothing runs at all, its `None` is
        overruled by the caller if something is eligible, so that no policy can stop a run.

        Args:
            state: the run as it is.
            workers: those that may take a sub-epoch now, ascending.
            rng: seeded by the caller, so a decision can be repeated.
        """
        ...
