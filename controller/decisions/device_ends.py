"""Expected end of a device's current task, and the time to queue the next one. Pure."""

from __future__ import annotations

import math

from cerebro.scheduling.policies.following import Following
from cerebro.scheduling.policies.policy import Policy
from cerebro.state import TaskKey, Worker
from controller.decisions.fit_dispatch import FitDispatch
from controller.projections.sub_epoch_times import technique_of

LOOKAHEAD_S = 1.0
"""A device gets its next task this many seconds, plus the load time, before the expected end.

A longer lookahead holds a model in a queue while another worker could train it; a shorter one makes the
device wait.
"""

_SOON_S = 1e-3
"""Shorter waits count as zero: rounding of large clocks may lose them."""


def end_of(fit: FitDispatch, worker: Worker, device: int) -> float | None:
    """Return the expected end of a device's current task, by the store's clock.

    `None` if it is no sub-epoch of the run. Infinity if the duration is unknown: ETL, trials, verifications,
    and models that have not run yet or have failed.
    """
    first = worker.first_in(device)
    key = TaskKey.parse(first) if first else None
    if key is not None and key.kind in ("etl", "trial", "verify"):
        return math.inf
    if key is None or key.kind != "train" or key.run != fit.run:
        return None
    dispatch_state, index = fit.dispatch_state, fit.names.model(key.model or "")
    sub_epoch = dispatch_state.running.get(index)
    if sub_epoch is None:
        return math.inf
    parallel_plan = (
        fit.parallel_plans.gang_parallel_plan(index) if sub_epoch.other_members else None
    ) or fit.parallel_plans.of(index, sub_epoch.worker)
    technique, estimates = technique_of(parallel_plan), fit.times.estimates
    if not estimates.knows(fit.names.models[index], technique):
        return math.inf
    if not sub_epoch.other_members:
        seconds = dispatch_state.seconds(index, sub_epoch.partition, sub_epoch.worker)
        return sub_epoch.start + seconds * sub_epoch.sharing
    rows = fit.mean_rows * sum(dispatch_state.sizes[partition] for partition, _ in sub_epoch.places)
    return sub_epoch.start + estimates.seconds(
        fit.names.models[index], fit.names.workers[sub_epoch.worker], rows=rows, technique=technique
    )


def due_s(fit: FitDispatch, worker: Worker, device: int, now: float) -> float:
    """Return the seconds until a device should get its next task; 0 for now."""
    end = end_of(fit, worker, device)
    due_s = end - now - LOOKAHEAD_S - fit.times.load_s if end is not None else 0.0
    return due_s if due_s > _SOON_S else 0.0


def due_devices(fit: FitDispatch, worker: Worker, policy: Policy, now: float) -> list[int]:
    """Return devices that may get a queued task now, ordered by expected end."""
    devices = [device for device in range(worker.devices) if not due_s(fit, worker, device, now)]
    if worker.devices > 1 and isinstance(policy, Following):
        # An idle device starts a sub-epoch only now: a plan means the next one for the first device to
        # end.
        devices = [device for device in devices if worker.first_in(device)]
    if len(devices) > 1:
        devices.sort(key=lambda device: end_of(fit, worker, device) or 0.0)
    return devices
