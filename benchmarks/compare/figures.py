"""The bars of a sitting."""

from __future__ import annotations

import math

from benchmarks.compare import task
from benchmarks.compare.sitting import METHODS, Sitting
from benchmarks.figure import Figure

BARS = {"ddp": 2.5, "task-parallel": 1.05, "ray-tune": 1.4}
"""Method -> minimum of its time divided by Cerebro's, from the call to the result."""


def of(sitting: Sitting) -> list[Figure]:
    """Return a figure for each bar."""
    return [_figure(sitting, method, bar) for method, bar in BARS.items()]


def _figure(sitting: Sitting, method: str, bar: float) -> Figure:
    name = f"one epoch of {len(task.RATES)} models on {task.WORKERS} workers: {METHODS[method].name} against Cerebro"
    if method not in sitting.outcomes:
        missing = "not measured: `make compare` installs it into an environment of its own first"
        return Figure(what=name, measured=missing, ratio=math.nan, bar=bar, sense="at least")
    rounds = "; ".join(
        f"{each} {', '.join(format(outcome['seconds'], '.1f') for outcome in found)} s"
        for each, found in sitting.outcomes.items()
    )
    share = sitting.held("cerebro") / sitting.held(method)
    measured = f"{sitting.seconds(method):.1f} s, Cerebro {sitting.seconds('cerebro'):.1f} s"
    if method == "task-parallel":
        measured += f" with {share:.2f} of the rows in each worker's memory"
    notes = (f"{sitting.rows:,} rows, load average {sitting.load[0]:.1f} to {sitting.load[1]:.1f}: {rounds}",)
    return Figure(
        what=name,
        measured=measured,
        ratio=sitting.ratio(method),
        bar=bar,
        sense="at least",
        notes=notes if method == "ddp" else (),
    )
