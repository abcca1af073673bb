"""Result and error of exact solvers."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.errors import PermanentError
from cerebro.scheduling.schedule import Schedule

TOLERANCE = 1e-6
"""Relative tolerance for "optimal": solvers use whole ticks or their own tolerances.

CP-SAT is exact for times with at most three decimals.
"""


class SolverUnavailableError(PermanentError):
    """A named solver is not installed, has no licence, or does not accept this problem."""


@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The best schedule found, and its proof.

    Attributes:
        schedule: never worse than the hint; `None` if nothing was found without a hint.
        lower_bound: minimum seconds of any schedule.
        is_optimal: True if `schedule` is proven optimal, to `TOLERANCE`.
        solver: name of the solver; "none" if none was available.
        seconds: duration, including building the model.
        note: sentence for people: why it stopped, or which solver is missing.
    """

    schedule: Schedule | None
    lower_bound: float
    is_optimal: bool
    solver: str
    seconds: float
    note: str
