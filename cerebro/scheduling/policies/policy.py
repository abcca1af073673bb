"""The interface of dispatch policies, which assign sub-epochs to workers at every event.

Called by `controller.decisions` and by simulations (`dispatch`). A policy chooses among the results of
`DispatchState.eligible`, so it cannot break an invariant; it starts nothing itself. It is called at every event, so it
needs no memory and tolerates the loss of a worker or of the controller.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.schedule import Placement


class Policy(Protocol):
    """Chooses one sub-epoch at a time, by its own rule among the highest startable priority.

    A priority is a preference, never a wait. With several idle workers, one may start a lower priority so
    that another one, without a choice, starts the higher one.

    Must be pure: equal dispatch state, workers and generator state give equal choices, and the state is not
    modified. The caller starts the sub-epoch on the dispatch state and calls again with the remaining
    workers, until the result is `None`.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return an eligible sub-epoch for one of `workers`, or `None` to wait.

        A waiting policy is called again when a running sub-epoch ends. If nothing runs, the caller overrules
        `None` when a sub-epoch is eligible, so no policy can stop a run.

        Args:
            state: present state of the run.
            workers: workers that may take a sub-epoch, ascending.
            rng: seeded by the caller, so a decision can be repeated.
        """
        ...
