"""Corrections of estimated sub-epoch times that few sub-epochs support, for forecasts of the autoscaler. Pure.

`Estimates.shown` gives the input.

An estimate follows completed sub-epochs. With few, it has two errors. Sub-epochs vary, so a model that seems
costly probably had slow sub-epochs; if the variation is as large as the difference between models, its true
cost is nearer to the mean. And short sub-epochs complete first, so running ones take longer than the
completed ones suggest.

The spread between models is itself estimated from few models. One standard error is added, because models
usually differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FEWEST = 3
"""Minimum number of observed models to estimate the spread between models."""

_ROUNDS = 3
"""Iterations: the typical cost and the expected times of running sub-epochs depend on each other."""


class Beliefs(NamedTuple):
    """Corrections of natural logarithms of sub-epoch times.

    Attributes:
        shifts: correction of each model's estimate.
        doubts: standard deviation of each model's remaining independent error.
        shared: standard deviation of the common error, because few models determine the typical cost.
    """

    shifts: tuple[float, ...]
    doubts: tuple[float, ...]
    shared: float


def beliefs(
    shown: Sequence[tuple[float, float]], running: Mapping[int, float] | None = None, *, sigma: float = 0.0
) -> Beliefs:
    """Compute corrections of estimates.

    Args:
        shown: estimated log sub-epoch time of each model, and its standard error; infinity for a model
            without sub-epochs, which has the typical estimate.
        running: model -> logarithm of the elapsed time of its running sub-epoch.
        sigma: standard deviation of the logarithm of a model's sub-epoch times.
    """
    known = [(cost, doubt) for cost, doubt in shown if doubt < math.inf]
    costs = [cost for cost, _ in known]
    if len(known) < _FEWEST:
        unknown = statistics.pstdev(costs) if costs else 0.0
        doubts = tuple(unknown if doubt == math.inf else doubt for _, doubt in shown)
        return Beliefs((0.0,) * len(shown), doubts, 0.0)
    noise = statistics.fmean(doubt**2 for _, doubt in known)
    total = max(noise, statistics.variance(costs))
    spread = total - noise + total * math.sqrt(2 / (len(known) - 1))
    shares = [_share(doubt**2, spread) for _, doubt in shown]
    doubts = tuple(math.sqrt(share * spread) for share in shares)
    typical = statistics.fmean(costs)
    found = [typical] * len(shown)
    for _ in range(_ROUNDS):
        new = []
        for model, (cost, doubt) in enumerate(shown):
            found[model] = typical if doubt == math.inf else cost + shares[model] * (typical - cost)
            if model in (running or {}):
                assert running is not None
                off = math.hypot(doubts[model], sigma)
                least = _at_least(found[model], off, running[model])
                found[model] += (doubts[model] / off) ** 2 * (least - found[model]) if off else 0.0
                new += [least] if doubt == math.inf else []
        typical = statistics.fmean([*costs, *new])
    shifts = (is_at - cost for is_at, (cost, _) in zip(found, shown, strict=True))
    return Beliefs(tuple(shifts), doubts, statistics.fmean(shares) * math.sqrt(total / len(known)))


def _share(noise: float, spread: float) -> float:
    """Return the weight of the typical cost against the model's own estimate."""
    if noise == math.inf:
        return 1.0
    return noise / (noise + spread) if noise else 0.0


def _at_least(mean: float, deviation: float, least: float) -> float:
    """Return the mean of a normal distribution truncated below at `least`."""
    if not deviation:
        return max(mean, least)
    off = (least - mean) / deviation
    above = math.erfc(off / math.sqrt(2)) / 2
    if above < 1e-9:
        return least
    return mean + deviation * math.exp(-off * off / 2) / math.sqrt(2 * math.pi) / above
