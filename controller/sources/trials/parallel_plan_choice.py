"""Parallel plans from measurements, without a schedule: as many devices as shorten the run.

`lower_s` is the least possible makespan. Each model gets the cheapest plan, in device-seconds, that is not
longer. Only measured and verified plans count, and those the user named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.trials import KnownParallelPlan, ModelGroup
from controller.sources.trials.selection import WORTH
from controller.sources.trials.situation import Situation, outcome_of, there
from controller.sources.trials.times import counts, known_s, lower_s, times_of

_ROUNDING = 1e-6


def widths(parallel_plans: Mapping[str, Sequence[tuple[int, float]]], devices: int) -> dict[str, int]:
    """Return the devices of each model that gets several; {} if the gain is below `WORTH`.

    Args:
        parallel_plans: see `controller.sources.trials.times.lower_s`.
        devices: number of devices of all workers.
    """
    narrow = {model: [min(each)] for model, each in parallel_plans.items() if each}
    limit = lower_s(parallel_plans, devices)
    if not narrow or limit > lower_s(narrow, devices) * (1 - WORTH):
        return {}
    found = {
        model: min((size * seconds, size) for size, seconds in each if seconds <= limit * (1 + _ROUNDING))[1]
        for model, each in parallel_plans.items()
        if each
    }
    return {model: size for model, size in found.items() if size > 1}


def measured_plans(situation: Situation, total: Mapping[str, float]) -> dict[str, dict[int, ParallelPlan]]:
    """Return model -> kind of device -> parallel plan, for models that get several devices.

    Requires a known batch time of every group on one device.

    Args:
        total: model -> batches of its whole training; not the remaining ones, so that the choice is stable.
    """
    parallel_plans: dict[str, list[tuple[int, float]]] = {}
    for group in situation.inspection.groups:
        if known_s(situation, group) is None:
            continue
        fastest: dict[int, float] = {}
        for width, seconds in times_of(situation, group).items():
            fastest[width.size] = min(seconds, fastest.get(width.size, seconds))
        for model in group.models:
            if model in total:
                parallel_plans[model] = [(size, total[model] * seconds) for size, seconds in fastest.items()]
    if len(parallel_plans) < len(total):
        return {}
    devices = sum(sum(sizes) for sizes in situation.devices.values())
    chosen: dict[str, dict[int, ParallelPlan]] = {}
    for model, size in widths(parallel_plans, devices).items():
        group_of = situation.inspection.group_of(model)
        if group_of is not None and (found := _parallel_plans(situation, group_of, size)):
            chosen[model] = found
    return chosen


def _parallel_plans(situation: Situation, group: ModelGroup, size: int) -> dict[int, ParallelPlan]:
    """Return the fastest usable plan with `size` devices, for each kind of device."""
    found: dict[int, tuple[float, KnownParallelPlan]] = {}
    for known in there(situation, group):
        outcome = outcome_of(situation, group, known)
        if known.parallel_plan.size == size and outcome is not None and counts(situation, group, outcome):
            best = found.get(known.device_kind)
            if best is None or outcome.batch_s < best[0]:
                found[known.device_kind] = outcome.batch_s, known
    return {kind: known.parallel_plan for kind, (_, known) in found.items()}
