"""How long ways take: as measured, and as hoped for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cerebro.contract.trials import KnownParallelPlan, ModelGroup, TrialOutcome
from controller.sources.trials.memory import may_fit
from controller.sources.trials.situation import Situation, left_of, measured, outcome_of, there

Makespan = Callable[[Mapping[str, Sequence[tuple[int, float]]]], float]
"""Model -> its ways, each as (devices, seconds of all that is left to do by it) -> seconds until all is done."""


class Width(NamedTuple):
    """So many devices of one kind."""

    place: int
    size: int


def base_s(situation: Situation, group: ModelGroup) -> float:
    """Seconds of a batch by the way that sub-epochs have had; of models that have had none, as all others on
    average."""
    own, known = known_s(situation, group), list(situation.batch_s.values())
    return own or (sum(known) / len(known) if known else 1.0)


def known_s(situation: Situation, group: ModelGroup) -> float | None:
    """Seconds of a batch as sub-epochs of the group have shown it; `None`: none has."""
    own = [situation.batch_s[model] for model in group.models if model in situation.batch_s]
    return sum(own) / len(own) if own else None


def times_of(situation: Situation, group: ModelGroup) -> dict[Width, float]:
    """Seconds of a batch by the fastest usable way on each number of devices of each kind; empty if none fits."""
    found: dict[Width, float] = {}
    for known in there(situation, group):
        outcome = outcome_of(situation, group, known)
        key = Width(known.place, known.parallel_plan.size)
        if outcome is not None and counts(situation, group, outcome):
            found[key] = min(found.get(key, outcome.batch_s), outcome.batch_s)
        elif (
            outcome is None and known.parallel_plan.technique == "single" and may_fit(situation, group, known)
        ):
            found.setdefault(key, base_s(situation, group))
    if not found:  # one device, as user code is written, does not fit: sub-epochs have found a way that does
        for known in there(situation, group):
            if (group.id, known.id) in situation.fits and outcome_of(situation, group, known) is None:
                found[Width(known.place, known.parallel_plan.size)] = base_s(situation, group)
    return found


def counts(situation: Situation, group: ModelGroup, outcome: TrialOutcome) -> bool:
    """Whether sub-epochs may be given a way of this outcome: of ways that the user has not named, one that is not
    verified only if there is no other."""
    if not outcome.is_usable:
        return False
    if outcome.is_verified or situation.wanted is not None:
        return True
    return not any(_is_right(situation, group, known) for known in there(situation, group))


def _is_right(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """Whether the way can be used, and is known to compute what one device does."""
    outcome = outcome_of(situation, group, known)
    if outcome is not None:
        return outcome.is_usable and outcome.is_verified
    return known.parallel_plan.technique == "single" and may_fit(situation, group, known)


def _narrowest(times: Mapping[Width, float]) -> tuple[int, float]:
    """(devices, seconds) of the way that takes fewest devices, the fastest of several."""
    key = min(times, key=lambda key: (key.size, times[key]))
    return key.size, times[key]


def chain_s(situation: Situation, group: ModelGroup, times: Mapping[Width, float]) -> float:
    """Seconds of its longest model's sub-epochs one after another but for one of them, by the narrowest way."""
    if not times:
        return 0.0
    lengths = (
        situation.left[model] - situation.sub_epoch.get(model, 0.0)
        for model in group.models
        if situation.left.get(model, 0.0) > 0
    )
    return max(0.0, *lengths) * _narrowest(times)[1]


def load_s_of(
    situation: Situation, groups: Sequence[ModelGroup], times: Mapping[str, Mapping[Width, float]]
) -> float:
    """All work, by the cheapest way of each group, spread evenly over all devices."""
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
    """For each model with something left its ways, as `Makespan` takes them."""
    groups = situation.inspection.groups
    return {
        model: [(key.size, left * seconds) for key, seconds in times[group.id].items()]
        for group in groups
        for model in group.models
        if (left := situation.left.get(model, 0.0)) > 0 and times.get(group.id)
    }


def optimistic_s(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> float:
    """Seconds of a batch, were the speed-up over the nearest narrower way in proportion to the devices."""
    narrower = {k: s for k, s in measured(situation, group, known).items() if k < known.parallel_plan.size}
    if not narrower:
        narrower = {
            key.size: seconds
            for key, seconds in times_of(situation, group).items()
            if key.place == known.place and key.size < known.parallel_plan.size
        }
    if not narrower:
        narrower = {1: base_s(situation, group)}
    size = max(narrower)
    return narrower[size] * size / known.parallel_plan.size


def lower_s(parallel_plans: Mapping[str, Sequence[tuple[int, float]]], devices: int) -> float:
    """Seconds that all models take at least: the longest chain by each one's fastest way, and all work by each one's
    cheapest way over all devices; of a model that is to be shortened to the makespan, what that costs.

    The least C with: each model has a way of at most C seconds, and the cheapest such ways fill no more than C seconds
    of all devices. Their work falls by steps as C grows, so C is looked for from one step to the next.
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
        # What is spared beyond the limit is among the steps.
        work += min(cost for seconds, cost in each if seconds <= limit)
    for seconds, spared in sorted(steps):
        if work / devices < seconds:
            break
        limit, work = seconds, work + spared
    return max(limit, work / devices)
