"""How far estimates of models' sub-epoch times are to be believed, where few sub-epochs have shown them. Pure.

An estimate follows the sub-epochs that have ended. Where these are few, two things are wrong with that. They stray, so
a
model that seems to be costly was mostly unlucky: where sub-epochs stray no less than models differ, it is likelier to
be nearer to the others. And short ones end first: those that still run say that they take longer than this.

How much models differ is known of the models alone. It is taken to be a standard error more, for in general they do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FEWEST = 3
"""Models that tell by how much models differ."""

_ROUNDS = 3
"""What is typical, and what those will take that still run, depend on each other."""


class Beliefs(NamedTuple):
    """Natural logarithms.

    Attributes:
        shifts: of each model, what is to be added to its estimate.
        doubts: of each, the standard deviation of what it is off by then, apart from what others are.
        shared: the same of what all are off by together, because what is typical of models is known of some.
    """

    shifts: tuple[float, ...]
    doubts: tuple[float, ...]
    shared: float


def beliefs(
    shown: Sequence[tuple[float, float]], running: Mapping[int, float] | None = None, *, sigma: float = 0.0
) -> Beliefs:
    """What follows of estimates.

    Args:
        shown: of each model the logarithm that is estimated of its sub-epoch times, and the standard deviation by which
            its sub-epochs may have it wrong; infinity: it has had none, and the estimate is what is typical.
        running: model -> logarithm of how long a sub-epoch of it has run so far.
        sigma: of the logarithm of a model's sub-epochs.
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
    """By how much a model is as typical as what is not known of it."""
    if noise == math.inf:
        return 1.0
    return noise / (noise + spread) if noise else 0.0


def _at_least(mean: float, deviation: float, least: float) -> float:
    """Mean of the normal distribution's part that is at least that."""
    if not deviation:
        return max(mean, least)
    off = (least - mean) / deviation
    above = math.erfc(off / math.sqrt(2)) / 2
    if above < 1e-9:
        return least
    return mean + deviation * math.exp(-off * off / 2) / math.sqrt(2 * math.pi) / above
