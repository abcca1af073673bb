"""Time between two sub-epochs while model and device are free. Pure.

A device waits for the commit, the next decision, and the delivery of the task. This is no time of a sub-epoch and no
lack of work. It matters where sub-epochs are short.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right

from cerebro.state.runs.run import Run

_NEWEST = 16
"""Sub-epochs of each model to look at."""
_MODELS = 64
"""Models to look at, from the end of the run's list."""


def turnaround_s(run: Run) -> float:
    """Mean seconds from the end of a sub-epoch until the next one starts; 0 while unknown.

    A pause starts when both the model and the device have ended their previous sub-epochs. Breaks of the run do not
    count.
    """
    models = [model for model in run.models.values() if model.own_sub_epochs][-_MODELS:]
    ends: dict[tuple[str, int], list[float]] = {}
    starts = []
    for model in models:
        sub_epochs = model.kept_sub_epochs[-_NEWEST:]
        previous = 0.0
        for sub_epoch in sub_epochs:
            places = [(worker, device) for worker, devices in sub_epoch.places for device in devices]
            ended = run.clock.worked_until(sub_epoch.ended)
            starts.append((run.clock.worked_until(sub_epoch.started), previous, places))
            previous = ended
            for place in places:
                ends.setdefault(place, []).append(ended)
    for known in ends.values():
        known.sort()
    pauses = []
    for started, model_free, places in starts:
        counts = [bisect_right(ends[place], started) for place in places]
        if 0 < model_free <= started and counts and all(counts):
            devices_free = (ends[place][count - 1] for place, count in zip(places, counts, strict=True))
            pauses.append(started - max(model_free, *devices_free))
    return capped_mean(pauses)


def capped_mean(pauses: list[float]) -> float:
    """The mean, with the longest twentieth as long as the longest of the others; 0 without any.

    A median would miss pauses of every third sub-epoch, and a plain mean would count a model that a user stopped.
    """
    if not pauses:
        return 0.0
    ascending = sorted(pauses)
    most = ascending[max(0, len(ascending) * 19 // 20 - 1)]
    return statistics.fmean(min(pause, most) for pause in ascending)
