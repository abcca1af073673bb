"""Merge metrics: sub-epochs into an epoch, partitions into a split. Pure; for workers and the fold.

A ratio merges by adding both terms; a number by a mean weighted by rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cerebro.spec import Ratio


class Terms(NamedTuple):
    """A metric that is a ratio, as logs and tasks have it."""

    numerator: float
    denominator: float


class Part(NamedTuple):
    """Metrics of some rows.

    Attributes:
        metrics: numbers by name, including ratios.
        ratios: both terms of each ratio.
    """

    metrics: Mapping[str, float]
    ratios: Mapping[str, Terms]
    rows: int

    @property
    def kinds(self) -> dict[str, bool]:
        """Name -> whether it is a ratio."""
        return {name: name in self.ratios for name in self.metrics}


def merged(parts: Sequence[Part], *, of_no_rows: float = math.nan) -> dict[str, float]:
    """Merge metrics of all parts, by name. A single part stays unchanged; means of no rows are `of_no_rows`.

    Skips names that a part lacks, and names that only some parts have as a ratio (`mixed`).
    """
    if not parts:
        return {}
    names = [name for name in sorted(parts[0].metrics) if all(name in part.metrics for part in parts)]
    if len(parts) == 1 and parts[0].rows:
        return {name: parts[0].metrics[name] for name in names}
    rows = sum(part.rows for part in parts)
    found = {}
    for name in names:
        ratios = [part.ratios[name] for part in parts if name in part.ratios]
        if len(ratios) == len(parts):
            found[name] = total(ratios).value
        elif not ratios:
            found[name] = sum(part.metrics[name] * part.rows for part in parts) / rows if rows else of_no_rows
    return found


MOST = 1e300
"""Largest term that a worker accepts, so that sums of many terms stay finite."""


def total(ratios: Sequence[tuple[float, float]]) -> Ratio:
    """Add both terms, rounding once so that the order does not matter. Never raises.

    If a sum exceeds the range of floats, as with terms above `MOST`, both are scaled by the same power of
    two, which keeps the quotient. If a term is infinite or NaN, so is the numerator.
    """
    try:
        return _added(ratios)
    except OverflowError:
        by = -len(ratios).bit_length()
        return _added([(math.ldexp(above, by), math.ldexp(below, by)) for above, below in ratios])


def _added(ratios: Sequence[tuple[float, float]]) -> Ratio:
    numerators, denominators = zip(*ratios, strict=True) if ratios else ((), ())
    if not all(map(math.isfinite, (*numerators, *denominators))):
        return Ratio(math.nan, 1.0)
    return Ratio(math.fsum(numerators), math.fsum(denominators))


def mixed(here: Mapping[str, bool], there: Mapping[str, bool]) -> str | None:
    """Return the first metric that is a ratio in one part and a number in the other, so that it cannot be merged.

    Args:
        here, there: `Part.kinds` of the two parts.
    """
    return min((name for name in here.keys() & there.keys() if here[name] != there[name]), default=None)


ADVICE = (
    "return it always as a number or always as cerebro.Ratio(numerator, denominator); where there is nothing to count, "
    "that is cerebro.Ratio(0, 0)"
)
"""Advice for error messages about a mixed or missing metric."""
