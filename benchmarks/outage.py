"""Online dispatch with a worker that is down for a fifth of the time: the grid of `online`, each run with an outage.

The clairvoyant bound counts the time that the worker is away as capacity lost (a worker needs its column and its
absence), and nothing else. The attempt that is lost with the worker is made again at the expense of the policy,
although only who knows of the outage could have avoided it: half a unit on average, of the 16 that a worker has at
n = 2p, p = 8. So what was lost is told too.
"""

from __future__ import annotations

import statistics

from benchmarks.figure import Figure
from benchmarks.online import trials, worst

BAR = 1.03


def benchmark() -> Figure:
    """The grid with outages as a line of the table."""
    found = list(trials("lrptw", is_down=True))
    ratios = [trial.ratio for trial in found]
    others = statistics.fmean(trial.ratio for trial in trials("random", is_down=True))
    return Figure(
        what="online, the same with a worker down for a fifth of the time",
        measured=f"{statistics.fmean(ratios):.4f}, at most {max(ratios):.3f}, in {len(ratios)} runs",
        ratio=statistics.fmean(ratios),
        bar=BAR,
        sense="at most",
        notes=(
            worst(found),
            f"attempts lost with the worker: {statistics.fmean(t.lost for t in found):.4f} of the bound on average",
            f"the paper's random order, on the same durations: mean {others:.4f}",
        ),
    )
