"""What is known of the ways of a run's models, and what is left to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup, TrialOutcome


class Measured(NamedTuple):
    """A way of a group: ids as in `Inspection`."""

    group: str
    parallel_plan: str


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a run knows, and has left to do.

    Attributes:
        left: model -> batches that it has left to train on, of models that have any.
        sub-epoch: model -> batches of its longest sub-epoch: so much longer than the load bound a chain may be just
        because sub-epochs
            are not divided.
        batch_s: model -> seconds of a batch by the way that its sub-epochs have had, as far as that is known; the
            others are like them on average.
        outcomes: of trials.
        struck: ways that sub-epochs have failed by.
        fits: ways that sub-epochs were committed by.
        under_way: trials that are open.
        devices: index of a kind of devices, as in `inspection` -> how many each worker has that is there.
        wanted: techniques that the user has named; `None`: whatever keeps the numbers of one device.
    """

    inspection: Inspection
    left: Mapping[str, float]
    sub_epoch: Mapping[str, float] = field(default_factory=dict)
    batch_s: Mapping[str, float] = field(default_factory=dict)
    outcomes: Mapping[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    struck: Collection[tuple[str, str]] = ()
    fits: Collection[tuple[str, str]] = ()
    under_way: Collection[tuple[str, str]] = ()
    devices: Mapping[int, Sequence[int]]
    wanted: Collection[str] | None = None


def left_of(situation: Situation, group: ModelGroup) -> list[float]:
    """Batches that models of the group have left, of those that have any."""
    return [left for model in group.models if (left := situation.left.get(model, 0.0)) > 0]


def there(situation: Situation, group: ModelGroup) -> Iterator[KnownParallelPlan]:
    """Ways that can be used now: applicable, not ruled out, wanted, and with a worker that has the devices."""
    for known in group.parallel_plans:
        if known.reason or (group.id, known.id) in situation.struck:
            continue
        if max(situation.devices.get(known.place, ()), default=0) < known.parallel_plan.size:
            continue
        is_wanted = (
            known.is_automatic
            if situation.wanted is None
            else known.parallel_plan.technique in situation.wanted
        )
        if is_wanted:
            yield known


def outcome_of(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> TrialOutcome | None:
    """What a trial of the way has shown."""
    return situation.outcomes.get((group.id, known.id))


def is_like(one: KnownParallelPlan, other: KnownParallelPlan) -> bool:
    """Whether they differ in the number of devices alone."""
    return (one.parallel_plan.technique, one.parallel_plan.params, one.place) == (
        other.parallel_plan.technique,
        other.parallel_plan.params,
        other.place,
    )


def measured(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> dict[int, float]:
    """Devices -> seconds of a batch by ways that are like this one."""
    return {
        other.parallel_plan.size: outcome.batch_s
        for other in group.parallel_plans
        if is_like(other, known)
        and (outcome := outcome_of(situation, group, other)) is not None
        and outcome.is_usable
    }


def is_ruled_out(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """Whether a trial, or a sub-epoch, has come to nothing by the way."""
    outcome = outcome_of(situation, group, known)
    return (group.id, known.id) in situation.struck or (outcome is not None and bool(outcome.reason))
