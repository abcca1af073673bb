"""The savepoint timer limits the time spent on savepoints."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from cerebro.worker.training.checkpoints.savepoints import Timer


def clocked(timer: Timer, *, sub_epoch_s: float, cost_s: float, batch_s: float = 0.5) -> list[float]:
    """Return the times of savepoints in a simulated sub-epoch."""
    timer.begin(0.0)
    now, taken, done = 0.0, list[float](), 0
    batches = round(sub_epoch_s / batch_s)
    while done < batches:
        now, done = now + batch_s, done + 1
        if timer.is_due(now, share=done / batches):
            taken.append(now)
            timer.tried(now, now + cost_s, is_taken=True)
            now += cost_s
    return taken


@given(sub_epoch_s=st.floats(130, 20_000), cost_s=st.floats(0.01, 60))
def test_savepoints_need_at_most_a_fiftieth_of_the_time(sub_epoch_s: float, cost_s: float) -> None:
    """The first savepoint has unknown cost.

    The pause is at most a quarter of an hour, or longer if the cost requires it.
    """
    timer = Timer()
    taken = clocked(timer, sub_epoch_s=sub_epoch_s, cost_s=cost_s, batch_s=5.0)
    pauses = [after - before for before, after in itertools.pairwise(taken)]
    assert all(pause >= 50 * cost_s for pause in pauses)
    assert all(pause <= max(900, 50 * cost_s) + cost_s + 5.0 for pause in pauses)
    assert len(taken) >= 1


def test_the_interval_follows_youngs_formula() -> None:
    """The interval is sqrt(2 d M), limited to between one minute and a quarter of an hour."""
    timer = Timer(between_losses_s=10_000.0)
    assert timer.interval_s() == 60
    timer.tried(0.0, 2.0, is_taken=True)
    assert timer.interval_s() == math.sqrt(2 * 2.0 * 10_000.0) == 200
    timer.tried(0.0, 100.0, is_taken=True)
    assert timer.interval_s() == 5_000
    assert Timer(5.0).interval_s() == 5
    assert Timer(0.0).interval_s() == math.inf
