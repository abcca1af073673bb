"""What an exact solver answers, and how it says that it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.errors import PermanentError
from cerebro.scheduling.schedule import Schedule

TOLERANCE = 1e-6
"""A schedule is called optimal if none is shorter by more than this part of it: solvers calculate in whole ticks, or
with tolerances of their own. CP-SAT's answers are exact for times of at most three decimals."""


class SolverUnavailableError(PermanentError):
    """A solver that was asked for by name is not installed, has no licence, or does not take this problem."""


@dataclass(frozen=True, kw_only=True)
class ExactResult:
    """The best schedule found and what is known of it.

    Attributes:
        schedule: never worse than the hint; None if there was no hint and nothing was found in time.
        lower_bound: seconds; no schedule is shorter.
        is_optimal: whether `schedule` is proven optimal, to `TOLERANCE`.
        solver: the name of the one that searched; "none" if none could.
        seconds: it took, building the model included.
        note: what a person should know, in a sentence: why it stopped, or what is missing.
    """

    schedule: Schedule | None
    lower_bound: float
    is_optimal: bool
    solver: str
    seconds: float
    note: str
