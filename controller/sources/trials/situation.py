"""Known facts about a run's parallel plans, and its remaining work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup, TrialOutcome


class Measured(NamedTuple):
    """A parallel plan of a group: ids as in `Inspection`."""

    group: str
    parallel_plan: str


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Known facts about a run, and its remaining work.

    Attributes:
        remaining_batches: model -> remaining batches, if it has any.
        sub-epoch: model -> batches of its longest sub-epoch (`sub_epoch`). A chain may exceed the load bound
            by this, because sub-epochs are not divided.
        batch_s: model -> known seconds of a batch; the others get the average.
        outcomes: results of trials.
        struck: plans that failed in sub-epochs.
        fits: plans of committed sub-epochs.
        under_way: open trials.
        devices: index of a kind of device, as in `inspection` -> number of devices of each alive worker.
        wanted: techniques named by the user; `None` for all that compute the same numbers as one device.
    """

    inspection: Inspection
    remaining_batches: Mapping[str, float]
    sub_epoch: Mapping[str, float] = field(default_factory=dict)
    batch_s: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    struck: Collection[tuple[str, str]] = ()
    fits: Collection[tuple[str, str]] = ()
    under_way: Collection[tuple[str, str]] = ()
    devices: Mapping[int, Sequence[int]]
    wanted: Collection[str] | None = None


def left_of(situation: Situation, group: ModelGroup) -> list[float]:
    """Return the remaining batches of the group's unfinished models."""
    return [batches for model in group.models if (batches := situation.remaining_batches.get(model, 0.0)) > 0]


def there(situation: Situation, group: ModelGroup) -> Iterator[KnownParallelPlan]:
    """Yield usable plans: applicable, wanted, not ruled out, and with a worker that has enough devices."""
    for known in group.parallel_plans:
        if known.reason or (group.id, known.id) in situation.struck:
            continue
        if max(situation.devices.get(known.device_kind, ()), default=0) < known.parallel_plan.size:
            continue
        is_wanted = (
            known.is_automatic
            if situation.wanted is None
            else known.parallel_plan.technique in situation.wanted
        )
        if is_wanted:
            yield known


def outcome_of(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> TrialOutcome | None:
    """Return the plan's trial outcome, if any."""
    return situation.outcomes.get((group.id, known.id))


def is_like(one: KnownParallelPlan, other: KnownParallelPlan) -> bool:
    """True if the plans differ only in the number of devices."""
    return (one.parallel_plan.technique, one.parallel_plan.params, one.device_kind) == (
        other.parallel_plan.technique,
        other.parallel_plan.params,
        other.device_kind,
    )


def measured(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> dict[int, float]:
    """Return devices -> measured seconds of a batch by plans that differ only in the number of devices."""
    return {
        other.parallel_plan.size: outcome.batch_s
        for other in group.parallel_plans
        if is_like(other, known)
        and (outcome := outcome_of(situation, group, other)) is not None
        and outcome.is_usable
    }


def is_ruled_out(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """True if the plan failed in a trial or sub-epoch."""
    outcome = outcome_of(situation, group, known)
    return (group.id, known.id) in situation.struck or (outcome is not None and bool(outcome.reason))
