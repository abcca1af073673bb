"""Dispatch policies behind one interface, each in a file of its own."""

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
}
"""By the name that `run_fit(scheduler=...)` takes."""

DEFAULT_POLICY = "lrptw"

__all__ = ["DEFAULT_POLICY", "POLICIES", "CriticalFirst", "Policy"]
