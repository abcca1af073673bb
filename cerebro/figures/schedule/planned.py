"""Planned sub-epochs of a fit run that have not started, at most 500. Pure.

The callers of `cerebro.figures.schedule.schedule` pass the result to it. It reads the newest plan in the run's state
and does not plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.runs import PlannedSubEpoch
from cerebro.state import Run, TaskKey, TaskState
from cerebro.state.models.model import Model, ModelState
from cerebro.state.tasks.task import Attempt

MAX_PLANNED = 500
"""Maximum number of planned sub-epochs to show: later ones will change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSpan:
    """A planned sub-epoch that has not started.

    Times are estimates in seconds on the clock of `Span`, or from now before the run's first sub-epoch.
    """

    model: str
    epoch: int
    partition: int
    worker: str
    start_s: float
    end_s: float
    device: int = 0
    """The device that is expected to be free first."""


def planned(
    run: Run, now: float, *, max_bars: int = MAX_PLANNED, devices: Mapping[str, int] | None = None
) -> list[PlannedSpan]:
    """Return the next sub-epochs of an open fit run's plan, in its order; none without a plan.

    A sub-epoch starts at its planned time, but not before now, nor before its device is free and its model's previous
    sub-epoch has ended. Thus a late run shows its remaining sub-epochs. A plan has starts only: a sub-epoch is assumed
    to last until the next one of its model or of its worker's only device, at most as long as its model's longest one
    so far.

    Args:
        now: seconds of the store's clock.
        max_bars: maximum number of sub-epochs.
        devices: worker -> number of devices; default 1.
    """
    known = devices or {}
    plan = run.scheduling.planned
    if plan is None or not run.is_open:
        return []
    zero = run.clock.first_start if math.isfinite(run.clock.first_start) else now
    free = {sub_epoch.worker: [now] * known.get(sub_epoch.worker, 1) for sub_epoch in plan.order}
    models: defaultdict[str, float] = defaultdict(lambda: now)
    planned: list[PlannedSpan] = []
    for sub_epoch, length in zip(plan.order, _lengths(plan.order, plan.makespan_s, known), strict=True):
        model = run.models.get(sub_epoch.model)
        if (
            model is None
            or model.state is not ModelState.ACTIVE
            or model.has_trained(sub_epoch.epoch, sub_epoch.partition)
        ):
            continue
        seconds = min([length, *_longest(model)])
        attempt = _running(run, sub_epoch)
        if attempt is not None:
            end = max(now, attempt.started + seconds)
            models[sub_epoch.model] = end
            for device in attempt.devices:
                if device < len(free.get(attempt.worker, ())):
                    free[attempt.worker][device] = end
            continue
        ends = free[sub_epoch.worker]
        device = ends.index(min(ends))
        start = max(plan.time + sub_epoch.start_s, ends[device], models[sub_epoch.model])
        ends[device] = models[sub_epoch.model] = start + seconds
        planned.append(
            PlannedSpan(
                model=sub_epoch.model,
                epoch=sub_epoch.epoch,
                partition=sub_epoch.partition,
                worker=sub_epoch.worker,
                start_s=start - zero,
                end_s=start + seconds - zero,
                device=device,
            )
        )
        if len(planned) == max_bars:
            break
    return planned


def _lengths(order: Sequence[PlannedSubEpoch], end_s: float, devices: Mapping[str, int]) -> list[float]:
    """Return the seconds from each sub-epoch to the next one of its model or one-device worker, or the plan's end."""
    limits: list[float] = []
    next_of: dict[tuple[str, str], float] = {}
    for sub_epoch in reversed(order):
        keys = [("model", sub_epoch.model)]
        if devices.get(sub_epoch.worker, 1) == 1:
            keys.append(("worker", sub_epoch.worker))
        limit = min(next_of.get(key, end_s) for key in keys)
        limits.append(max(0.0, limit - sub_epoch.start_s))
        next_of |= dict.fromkeys(keys, sub_epoch.start_s)
    return limits[::-1]


def _longest(model: Model) -> list[float]:
    """Return the seconds of a model's longest sub-epoch as a list; empty before the first."""
    return [max(sub_epoch.seconds for sub_epoch in model.kept_sub_epochs)] if model.kept_sub_epochs else []


def _running(run: Run, sub_epoch: PlannedSubEpoch) -> Attempt | None:
    """Return the running attempt at a sub-epoch."""
    key = TaskKey(
        run=run.id, kind="train", model=sub_epoch.model, epoch=sub_epoch.epoch, partition=sub_epoch.partition
    )
    task = run.tasks.open.get(str(key))
    return task.attempts[-1] if task is not None and task.state is TaskState.RUNNING else None
