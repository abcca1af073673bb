"""Dispatch policies behind one interface: which eligible unit goes to which worker next."""

from controller.scheduling.policy import Choice, Policy
from controller.scheduling.random_order import RandomOrder

POLICIES: dict[str, Policy] = {"random": RandomOrder()}
"""By the name that `run_fit(scheduler=...)` takes."""

__all__ = ["POLICIES", "Choice", "Policy"]
