"""Batch times of parallel plans: measured and optimistic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cerebro.contract.trials import KnownParallelPlan, ModelGroup, TrialOutcome
from controller.sources.trials.memory import may_fit
from controller.sources.trials.situation import Situation, left_of, measured, outcome_of, there


class Width(NamedTuple):
    """A number of devices of one kind."""

    device_kind: int
    size: int


def base_s(situation: Situation, group: ModelGroup) -> float:
    """Return seconds of a batch in the group's sub-epochs, else the average of all models."""
    group_s, known = known_s(situation, group), list(situation.batch_s.values())
    return group_s or (sum(known) / len(known) if known else 1.0)


def known_s(situation: Situation, group: ModelGroup) -> float | None:
    """Return measured seconds of a batch in the group's sub-epochs, or `None`."""
    batch_times = [situation.batch_s[model] for model in group.models if model in situation.batch_s]
    return sum(batch_times) / len(batch_times) if batch_times else None


def times_of(situation: Situation, group: ModelGroup) -> dict[Width, float]:
    """Return seconds of a batch by the fastest usable plan of each width."""
    found: dict[Width, float] = {}
    for known in there(situation, group):
        outcome = outcome_of(situation, group, known)
        key = Width(known.device_kind, known.parallel_plan.size)
        if outcome is not None and counts(situation, group, outcome):
            found[key] = min(found.get(key, outcome.batch_s), outcome.batch_s)
        elif (
            outcome is None and known.parallel_plan.technique == "single" and may_fit(situation, group, known)
        ):
            found.setdefault(key, base_s(situation, group))
    if not found:  # one device does not fit: use the plan by which sub-epochs were committed
        for known in there(situation, group):
            if (group.id, known.id) in situation.fits and outcome_of(situation, group, known) is None:
                found[Width(known.device_kind, known.parallel_plan.size)] = base_s(situation, group)
    return found


def counts(situation: Situation, group: ModelGroup, outcome: TrialOutcome) -> bool:
    """True if sub-epochs may use a plan with this outcome.

    Unless the user named techniques, an unverified plan counts only without a verified one.
    """
    if not outcome.is_usable:
        return False
    if outcome.is_verified or situation.wanted is not None:
        return True
    return not any(_is_right(situation, group, known) for known in there(situation, group))


def _is_right(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """True if the plan is usable and known to compute the same as one device."""
    outcome = outcome_of(situation, group, known)
    if outcome is not None:
        return outcome.is_usable and outcome.is_verified
    return known.parallel_plan.technique == "single" and may_fit(situation, group, known)


def _narrowest(times: Mapping[Width, float]) -> tuple[int, float]:
    """Return (devices, seconds) of the fastest plan among those with the fewest devices."""
    key = min(times, key=lambda key: (key.size, times[key]))
    return key.size, times[key]


def chain_s(situation: Situation, group: ModelGroup, times: Mapping[Width, float]) -> float:
    """Return seconds of the longest model's chain, without one sub-epoch, by the narrowest plan."""
    if not times:
        return 0.0
    lengths = (
        situation.remaining_batches[model] - situation.sub_epoch.get(model, 0.0)
        for model in group.models
        if situation.remaining_batches.get(model, 0.0) > 0
    )
    return max(0.0, *lengths) * _narrowest(times)[1]


def load_s_of(
    situation: Situation, groups: Sequence[ModelGroup], times: Mapping[str, Mapping[Width, float]]
) -> float:
    """Return seconds of all work by each group's cheapest plan, spread over all devices."""
    devices = sum(sum(sizes) for sizes in situation.devices.values())
    work = (
        sum(left_of(situation, group))
        * min((key.size * seconds for key, seconds in times[group.id].items()), default=0.0)
        for group in groups
    )
    return sum(work) / max(1, devices)


def parallel_plans_of(
    situation: Situation, times: Mapping[str, Mapping[Width, float]]
) -> dict[str, list[tuple[int, float]]]:
    """Return the plans of each unfinished model as input of `lower_s`."""
    groups = situation.inspection.groups
    return {
        model: [(key.size, remaining_batches * seconds) for key, seconds in times[group.id].items()]
        for group in groups
        for model in group.models
        if (remaining_batches := situation.remaining_batches.get(model, 0.0)) > 0 and times.get(group.id)
    }


def optimistic_s(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> float:
    """Return seconds of a batch with linear speed-up over the nearest narrower plan."""
    narrower = {k: s for k, s in measured(situation, group, known).items() if k < known.parallel_plan.size}
    if not narrower:
        narrower = {
            key.size: seconds
            for key, seconds in times_of(situation, group).items()
            if key.device_kind == known.device_kind and key.size < known.parallel_plan.size
        }
    if not narrower:
        narrower = {1: base_s(situation, group)}
    size = max(narrower)
    return narrower[size] * size / known.parallel_plan.size


def lower_s(parallel_plans: Mapping[str, Sequence[tuple[int, float]]], devices: int) -> float:
    """Return a lower bound of the makespan, in seconds.

    The least C such that each model has a plan of at most C seconds, and the cheapest such plans fill at most
    C seconds of all devices. Their work falls in steps as C grows, so the search goes from step to step.

    Args:
        parallel_plans: model -> its plans as (devices, seconds of all remaining work).
        devices: number of devices of all workers.
    """
    models = [
        sorted((seconds, size * seconds) for size, seconds in each)
        for each in parallel_plans.values()
        if each
    ]
    if not models:
        return 0.0
    limit = max(each[0][0] for each in models)
    work, steps = 0.0, []
    for each in models:
        cheapest = each[0][1]
        for seconds, cost in each[1:]:
            if cost < cheapest:
                if seconds > limit:
                    steps.append((seconds, cost - cheapest))
                cheapest = cost
        # Savings beyond the limit are in `steps`.
        work += min(cost for seconds, cost in each if seconds <= limit)
    for seconds, spared in sorted(steps):
        if work / devices < seconds:
            break
        limit, work = seconds, work + spared
    return max(limit, work / devices)
