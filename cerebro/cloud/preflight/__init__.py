"""Everything that can be found wrong before anything is made. All of it is said at once, not one mistake per try."""

from cerebro.cloud.preflight.checking import Preflight, check
from cerebro.cloud.preflight.finding import Finding, Verdict

__all__ = ["Finding", "Preflight", "Verdict", "check"]
