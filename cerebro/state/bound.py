"""Lower bounds of the makespan of a run as it was: with the times its sub-epochs took, no order ends earlier. Pure.

Two others are computed elsewhere: of a plan before it runs (`cerebro.scheduling.bounds`), and of what models could
take by other ways (`controller.sources.trials.times`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from cerebro.contract.runs import TakenSpan
from cerebro.state.runs import Run
from cerebro.state.taken import open_s
from cerebro.state.timeline import TrainedSubEpoch, running

_TICK_S = 1e-3
"""What is lacking is rounding: it must not be waited for until others give a device back."""


def lower_bound(run: Run, now: float, devices: Mapping[str, int]) -> float:
    """Of the makespan of what has run up to `now`, in seconds.

    Args:
        devices: of each worker on which it could train: how many it had at most; one that is not in it had one.
    """
    models = {model.id: model.trained_s for model in run.models.values()}
    return _with_sub_epochs(run, running(run, now), devices, models, run.trained_s)


def lower_bound_until(run: Run, end: float, devices: Mapping[str, int]) -> float:
    """The same of all that had run by a time that is past, since when nothing was archived."""
    models = {model.id: model.trained_s for model in run.models.values()}
    work = dict(run.trained_s)
    for sub_epoch in _ended_after(run, end):
        after = sub_epoch.ended - max(end, sub_epoch.started)
        models[sub_epoch.model] -= after
        for worker, held in sub_epoch.places:
            work[worker] -= after * len(held)
    begun = (
        sub_epoch._replace(ended=min(sub_epoch.ended, end))
        for sub_epoch in running(run, end)
        if sub_epoch.started < end
    )
    return _with_sub_epochs(run, begun, devices, models, work)


def _ended_after(run: Run, end: float) -> Iterator[TrainedSubEpoch]:
    for model in run.models.values():
        for visit in reversed(model.kept_visits):
            if visit.ended <= end:
                break
            yield TrainedSubEpoch.of(model.id, visit)


def _with_sub_epochs(
    run: Run,
    sub_epochs: Iterable[TrainedSubEpoch],
    devices: Mapping[str, int],
    models: Mapping[str, float],
    work: Mapping[str, float],
) -> float:
    by_model, by_worker = defaultdict(float, models), defaultdict(float, work)
    for sub_epoch in sub_epochs:
        by_model[sub_epoch.model] += sub_epoch.seconds
        for worker, held in sub_epoch.places:
            by_worker[worker] += sub_epoch.seconds * len(held)
    return least_s(run, by_model, by_worker, devices)


def least_s(
    run: Run, models: Mapping[str, float], work: Mapping[str, float], devices: Mapping[str, int]
) -> float:
    """Seconds, but for breaks, from the beginning of the run's makespan until all that it did can have been done, on
    the devices that others left it.

    A model is on one worker at a time, and a device trains one model at a time (seed paper, section 5.1); so the
    longest model needs some device, and each worker's work all of its own.

    Args:
        models: what each model trained, in seconds.
        work: what was trained on each worker, in device-seconds.
        devices: how many each worker on which the run could train has; one that is not in it has one.
    """
    longest, zero = max(models.values(), default=0.0), run.zero
    counts = {name: devices.get(name, 1) for name in {*devices, *work}}
    if not any(run.taken.values()):
        return max([longest, *(seconds / counts[name] for name, seconds in work.items())])
    found = [_given(seconds, counts[name], _edges(run, zero, [name])) for name, seconds in work.items()]
    total = sum(counts.values())
    return max([_given(longest, total, _edges(run, zero, counts), most=1), *found])


def _edges(run: Run, zero: float, workers: Iterable[str]) -> Iterator[tuple[float, int]]:
    """(seconds since `zero` but for breaks, change of the number of devices that others have), in order."""
    spans: Iterable[TakenSpan] = chain.from_iterable(run.taken.get(name, ()) for name in workers)
    found = []
    for span in spans:
        if span.until > zero:
            found += [(open_s(run, zero, span.since), 1), (open_s(run, zero, span.until), -1)]
    yield from sorted(found)


def _given(seconds: float, devices: int, edges: Iterable[tuple[float, int]], most: int = 0) -> float:
    """When so many device-seconds can have been had, of at most `most` devices at once (0: of all)."""
    at, left, taken = 0.0, seconds, 0
    for edge, change in (*edges, (math.inf, 0)):
        free = max(0, devices - taken)
        rate = min(free, most) if most else free
        given = rate * (edge - at) if rate else 0.0
        if given >= left - _TICK_S:
            return min(edge, at + (left / rate if rate else 0.0))
        left, at, taken = left - given, edge, taken + change
    return at
