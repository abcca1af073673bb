"""P50 and P90 of a run's end, from 1 to 20 simulations. Pure.

`controller.scaling.autoscaler.forecast` calls it after its simulations, in the planner's child process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import NamedTuple

SAMPLES, FEWEST = 20, 3
"""Simulations for an empirical P90, and the minimum for an estimate of their deviation."""

P90 = 1.2816
"""90% quantile of the standard normal distribution."""

_SMALL_SAMPLE_FACTOR = 1.3
"""Correction for few samples, from Student's distribution.

Its 90% quantile for one further value after n is 1.2816 x (1 + 1.3 / (n - 1)), to 2%; for n = 2 the quantile is a third
larger.
"""

_DEFAULT_SPREAD = 0.1
"""Relative deviation if too few simulations ran to estimate it."""


class Ends(NamedTuple):
    """P50 and P90 of the seconds until a run ends, including the time for workers to join and for copies."""

    p50_s: float
    p90_s: float


def spread(makespans: Collection[Sequence[float]]) -> float:
    """Return the relative deviation of simulations, from several sizes."""
    known = [(statistics.fmean(found), _deviation(found)) for found in makespans if len(found) >= FEWEST]
    return statistics.median([deviation / mean for mean, deviation in known if mean] or [_DEFAULT_SPREAD])


def simulated(makespans: Sequence[float], spread: float) -> Ends:
    """Return the ends of at least one simulation.

    Args:
        spread: relative deviation to use for few simulations.
    """
    middle, count = statistics.median(makespans), len(makespans)
    if count >= SAMPLES:
        # The run is one more sample: of all, nine in ten are no later.
        upper = sorted(makespans)[math.ceil(0.9 * (count + 1)) - 1]
    elif count >= FEWEST:
        upper = statistics.fmean(makespans) + P90 * _deviation(makespans)
    else:
        upper = middle * (1 + P90 * spread)
    return Ends(middle, max(middle, upper))


def _deviation(makespans: Sequence[float]) -> float:
    """Return the deviation of one more simulation from the mean, corrected for few samples."""
    return statistics.stdev(makespans) * (1 + _SMALL_SAMPLE_FACTOR / (len(makespans) - 1))
