"""A measured number, its reference, and its bar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        what: description of the measurement.
        measured: the result in words, with units and reference.
        ratio: number to compare with `bar`; both sides come from the same run.
        sense: whether `ratio` has to be at least or at most `bar`.
        measure: unit of `ratio` and `bar`; "" for a pure ratio.
        notes: further observations, one sentence each.
    """

    what: str
    measured: str
    ratio: float
    bar: float
    sense: Literal["at least", "at most"]
    measure: str = ""
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if the ratio meets the bar."""
        return self.ratio >= self.bar if self.sense == "at least" else self.ratio <= self.bar

    def row(self) -> dict[str, str | float | None]:
        """Return the line for ``python -m benchmarks --json``; an infinite ratio is None, because JSON has none."""
        return {
            "what": self.what,
            "measured": self.measured,
            "ratio": self.ratio if math.isfinite(self.ratio) else None,
            "bar": self.bar,
            "sense": self.sense,
            "holds": self.holds,
        }

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return the line as text: what, measured, ratio, bar, holds."""
        measure = f" {self.measure}" if self.measure else ""
        return (
            self.what,
            self.measured,
            f"{self.ratio:.1f}{measure}" if measure else f"{self.ratio:.3f}",
            f"{self.sense} {self.bar:g}{measure}",
            "yes" if self.holds else "NO",
        )
