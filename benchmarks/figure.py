"""A figure: what was measured, against what, and whether it holds its bar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        what: the line of the issue's table it answers.
        measured: what was found, in words, with dimensions, the reference beside it.
        ratio: the number that is compared with `bar`; both sides come from the same run.
        sense: whether `ratio` has to be at least or at most `bar`.
        measure: dimension of `ratio` and `bar`; empty for a pure ratio.
        notes: what else was seen, one sentence each.
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
        """Whether the bar is held."""
        return self.ratio >= self.bar if self.sense == "at least" else self.ratio <= self.bar

    def row(self) -> dict[str, str | float | None]:
        """The line for programs, as ``python -m benchmarks --json`` prints it; JSON has no infinite ratio, so None."""
        return {
            "what": self.what,
            "measured": self.measured,
            "ratio": self.ratio if math.isfinite(self.ratio) else None,
            "bar": self.bar,
            "sense": self.sense,
            "holds": self.holds,
        }

    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as text: what, measured, ratio, bar, holds."""
        measure = f" {self.measure}" if self.measure else ""
        return (
            self.what,
            self.measured,
            f"{self.ratio:.1f}{measure}" if measure else f"{self.ratio:.3f}",
            f"{self.sense} {self.bar:g}{measure}",
            "yes" if self.holds else "NO",
        )
