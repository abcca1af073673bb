"""Learning curves: what a model reported, over epochs, rows or time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["epoch", "row", "time"]
"""What a curve is drawn over: epochs from 1; rows trained since the model began; seconds since the run's first unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one model, in the order of `x`; both lists have the same length.

    Attributes:
        model: its id. index: its position in the run's plan, from 0.
        x: see `Axis`.
        y: finite values only.
        broke_at: where the metric was first not finite; `None` if it never was.
        best_at: index into `x` of the best epoch, for curves over epochs.
    """

    model: str
    index: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    broke_at: float | None = None
    best_at: int | None = None
