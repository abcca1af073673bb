"""Lower bounds of a run's makespan from its measured sub-epoch times: no order ends earlier. Pure.

Other modules compute bounds of future plans (`cerebro.scheduling.bounds`) and of other parallel plans
(`controller.sources.trials.times`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from cerebro.contract.runs import TakenSpan
from cerebro.state.reports.timeline import TrainedSubEpoch, running
from cerebro.state.runs.run import Run

_TICK_S = 1e-3
"""Tolerance for rounding; without it a tiny remainder would wait for the next free device."""


def lower_bound(run: Run, now: float, devices: Mapping[str, int]) -> float:
    """Return the lower bound of the makespan until `now`, in seconds.

    Args:
        devices: worker that could train for the run -> its largest number of devices; default 1.
    """
    models = {model.id: model.effort.trained_s for model in run.models.values()}
    return _with_sub_epochs(run, running(run, now), devices, models, run.device_time.trained_s)


def lower_bound_until(run: Run, end: float, devices: Mapping[str, int]) -> float:
    """Return the bound until a past time, with no sub-epoch compacted since."""
    models = {model.id: model.effort.trained_s for model in run.models.values()}
    work = dict(run.device_time.trained_s)
    for sub_epoch in _ended_after(run, end):
        excess_s = sub_epoch.ended - max(end, sub_epoch.started)
        models[sub_epoch.model] -= excess_s
        for worker, held in sub_epoch.places:
            work[worker] -= excess_s * len(held) / sub_epoch.sharing
    begun = (
        sub_epoch._replace(ended=min(sub_epoch.ended, end))
        for sub_epoch in running(run, end)
        if sub_epoch.started < end
    )
    return _with_sub_epochs(run, begun, devices, models, work)


def _ended_after(run: Run, end: float) -> Iterator[TrainedSubEpoch]:
    for model in run.models.values():
        for sub_epoch in reversed(model.kept_sub_epochs):
            if sub_epoch.ended <= end:
                break
            yield TrainedSubEpoch.of(model.id, sub_epoch)


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
            by_worker[worker] += sub_epoch.device_s * len(held)
    return least_s(run, by_model, by_worker, devices)


def least_s(
    run: Run, models: Mapping[str, float], work: Mapping[str, float], devices: Mapping[str, int]
) -> float:
    """Return the least seconds for the work on the free devices, without breaks.

    A model trains on one worker at a time, and a device trains one model at a time (seed paper, section 5.1). So the
    longest model needs one device throughout, and each worker's work needs its own devices.

    Args:
        models: training seconds of each model.
        work: device-seconds of training on each worker.
        devices: worker that could train for the run -> number of devices; default 1.
    """
    longest, zero = max(models.values(), default=0.0), run.zero
    counts = {name: devices.get(name, 1) for name in {*devices, *work}}
    if not any(run.device_time.taken.values()):
        return max([longest, *(seconds / counts[name] for name, seconds in work.items())])
    found = [
        _completion_time(seconds, counts[name], _edges(run, zero, [name])) for name, seconds in work.items()
    ]
    total = sum(counts.values())
    return max([_completion_time(longest, total, _edges(run, zero, counts), most=1), *found])


def _edges(run: Run, zero: float, workers: Iterable[str]) -> Iterator[tuple[float, int]]:
    """(seconds since `zero` without breaks, change in devices of other runs), in order."""
    spans: Iterable[TakenSpan] = chain.from_iterable(run.device_time.taken.get(name, ()) for name in workers)
    found = []
    for span in spans:
        if span.until > zero:
            found += [(run.clock.open_s(zero, span.since), 1), (run.clock.open_s(zero, span.until), -1)]
    yield from sorted(found)


def _completion_time(
    seconds: float, devices: int, edges: Iterable[tuple[float, int]], most: int = 0
) -> float:
    """Time at which `seconds` device-seconds were free, on at most `most` devices at once (0: all)."""
    at, remaining_s, taken = 0.0, seconds, 0
    for edge, change in (*edges, (math.inf, 0)):
        free = max(0, devices - taken)
        rate = min(free, most) if most else free
        available_s = rate * (edge - at) if rate else 0.0
        if available_s >= remaining_s - _TICK_S:
            return min(edge, at + (remaining_s / rate if rate else 0.0))
        remaining_s, at, taken = remaining_s - available_s, edge, taken + change
    return at
