"""Dispatch policies behind one interface (`Policy`), one file each, and their names for users (`POLICIES`).

The controller calls a run's policy when devices are free (`controller.decisions`); simulations call the same classes.
"""

from cerebro.scheduling.convergence import hermes, promising, slaq
from cerebro.scheduling.policies.by_priority_score import ByPriorityScore, RoundRobin
from cerebro.scheduling.policies.critical_first import CriticalFirst
from cerebro.scheduling.policies.cyclic import Cyclic
from cerebro.scheduling.policies.fifo import Fifo
from cerebro.scheduling.policies.monte_carlo import MonteCarlo
from cerebro.scheduling.policies.policy import Policy
from cerebro.scheduling.policies.random_order import RandomOrder

POLICIES: dict[str, Policy] = {
    "random": RandomOrder(),
    "fifo": Fifo(),
    "lrptw": CriticalFirst(),
    "cyclic": Cyclic(),
    "monte-carlo": MonteCarlo(),
    "promising": ByPriorityScore(promising, preempts=True),
    "hermes": ByPriorityScore(hermes, preempts=True),
    "slaq": ByPriorityScore(slaq),
    "rr": RoundRobin(),
}
"""Policies by their name in `Scheduling(scheduler=...)`."""

DEFAULT_POLICY = "lrptw"


def is_by_priority_score(name: str) -> bool:
    """Return whether the policy of this name compares models by their losses.

    Returns False for unknown names.
    """
    return isinstance(POLICIES.get(name), ByPriorityScore)


__all__ = ["DEFAULT_POLICY", "POLICIES", "ByPriorityScore", "CriticalFirst", "Policy", "is_by_priority_score"]
