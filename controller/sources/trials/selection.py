"""Choice of worthwhile trials. Pure; independent of torch, processes and the store.

A trial is worthwhile if there is a choice that could shorten the run. Sub-epochs themselves show whether a
plan fits: after one runs out of memory, the next one tries the next plan. The rules:

- A plan that cannot fit is not tried: its state, with optimizer state and activations seen in the group's
trials, exceeds `FULL` of a device's or the host's memory.
- A plan on k devices is at most k times as fast, so it can only shorten long chains: a model's sub-epochs are
serial. Only models with a long chain are tried. By the narrowest fitting plan and without one sub-epoch, it
exceeds `LONG` of the load bound, which is all work spread evenly over all devices.
- The makespan is computed with optimistic times: linear speed-up over the nearest measured plan. If the
group's optimistic times shorten it by less than `WORTH`, there is no trial.

Numbers of devices are tried in doubling steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.contract.trials import KnownParallelPlan, ModelGroup
from controller.sources.trials.memory import is_hopeless, may_fit
from controller.sources.trials.situation import (
    Situation,
    is_like,
    is_ruled_out,
    left_of,
    measured,
    outcome_of,
    there,
)
from controller.sources.trials.times import (
    Width,
    chain_s,
    known_s,
    load_s_of,
    lower_s,
    optimistic_s,
    parallel_plans_of,
    times_of,
)

LONG = 0.8
"""Share of the load bound."""
WORTH = 0.01
"""Share of the makespan."""
LEAST_BATCHES, LEAST_S = 100, 30.0
"""Minimum remaining batches and seconds of a model for a trial to pay."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A worthwhile trial.

    Attributes:
        known: the parallel plan.
        model: a model of its group for the trial.
    """

    group: ModelGroup
    known: KnownParallelPlan
    model: str


def is_there_a_choice(
    devices: Sequence[int],
    remaining_batches: Mapping[str, float],
    sub_epoch: Mapping[str, float],
    batch_s: Mapping[str, float],
) -> bool:
    """True if an inspection of the run's models could be useful.

    Args:
        devices: number of devices of each training worker.
        left, sub-epoch, batch_s: as in `Situation`.
    """
    if max(devices, default=0) < 2 or not remaining_batches:
        return False
    typical = sum(batch_s.values()) / len(batch_s) if batch_s else 1.0
    chains = {model: batches * batch_s.get(model, typical) for model, batches in remaining_batches.items()}
    longest = max(chains, key=lambda model: chains[model])
    one_less = chains[longest] - sub_epoch.get(longest, 0.0) * batch_s.get(longest, typical)
    is_long = one_less > LONG * sum(chains.values()) / sum(devices)
    return is_long and is_worth_a_trial(remaining_batches[longest], batch_s.get(longest))


def is_worth_a_trial(batches: float, batch_s: float | None) -> bool:
    """True if a model has enough remaining work for a trial to pay.

    A trial takes dozens of batches and process starts.

    Args:
        batch_s: seconds of a batch; `None` if unknown.
    """
    return batches >= LEAST_BATCHES and (batch_s is None or batches * batch_s >= LEAST_S)


def trials(situation: Situation) -> Iterator[Wanted]:
    """Yield worthwhile trials, the longest chain's first.

    Later ones are for workers that cannot run the first. Call again after one has started.
    """
    groups = [group for group in situation.inspection.groups if left_of(situation, group)]
    if not any(size > 1 for sizes in situation.devices.values() for size in sizes):
        return
    times = {group.id: times_of(situation, group) for group in groups}
    chains = {group.id: chain_s(situation, group, times[group.id]) for group in groups}
    load_s = load_s_of(situation, groups, times)
    long = [
        group
        for group in groups
        if times[group.id] and chains[group.id] > LONG * load_s
        if is_worth_a_trial(max(left_of(situation, group)), known_s(situation, group))
    ]
    hopes = {group.id: _hopes(situation, group) for group in long}
    # With all optimistic times, then without one group's: of two equal chains, shortening one alone gains
    # nothing.
    best = times | {group.id: _with(times[group.id], hopes[group.id]) for group in long}
    for group in sorted(long, key=lambda group: -chains[group.id]):
        if hopes[group.id] and not _is_being_tried(situation, group):
            yield from _worthwhile(situation, group, hopes[group.id], _Comparison(times, best))


def _untried(situation: Situation, group: ModelGroup) -> Iterator[KnownParallelPlan]:
    for known in there(situation, group):
        is_known = outcome_of(situation, group, known) is not None
        if not is_known and may_fit(situation, group, known) and not is_hopeless(situation, group, known):
            yield known


class _Comparison(NamedTuple):
    """Inputs of the makespan comparison."""

    times: Mapping[str, Mapping[Width, float]]
    """Known times of each group."""
    best: Mapping[str, Mapping[Width, float]]
    """The same with all optimistic times."""


def _hopes(situation: Situation, group: ModelGroup) -> list[tuple[KnownParallelPlan, float]]:
    """Return the plans to try next, with optimistic seconds of a batch."""
    return [
        (known, optimistic_s(situation, group, known))
        for known in _untried(situation, group)
        if known.parallel_plan.size > 1 and _is_next(situation, group, known)
    ]


def _with(
    times: Mapping[Width, float], hopes: Iterable[tuple[KnownParallelPlan, float]]
) -> dict[Width, float]:
    found = dict(times)
    for known, seconds in hopes:
        width = Width(known.device_kind, known.parallel_plan.size)
        found[width] = min(seconds, found.get(width, seconds))
    return found


def _worthwhile(
    situation: Situation,
    group: ModelGroup,
    hopes: Sequence[tuple[KnownParallelPlan, float]],
    comparison: _Comparison,
) -> Iterator[Wanted]:
    devices = sum(sum(sizes) for sizes in situation.devices.values())

    def makespan_s(times: Mapping[Width, float]) -> float:
        return lower_s(parallel_plans_of(situation, {**comparison.best, group.id: times}), devices)

    without = makespan_s(comparison.times[group.id])
    found: list[tuple[float, Wanted]] = []
    for known, seconds in hopes:
        makespan_with_trial = makespan_s(_with(comparison.times[group.id], [(known, seconds)]))
        if makespan_with_trial < without * (1 - WORTH):
            wanted = Wanted(group=group, known=known, model=_model(situation, group))
            found.append((makespan_with_trial, wanted))
    # Few devices first; ties go by the inspection's order, which is the order of the techniques.
    yield from (
        wanted for _, wanted in sorted(found, key=lambda pair: (pair[1].known.parallel_plan.size, pair[0]))
    )


def _is_being_tried(situation: Situation, group: ModelGroup) -> bool:
    return any(name == group.id for name, _ in situation.under_way)


def _is_next(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """True if the plan's number of devices is the next to try.

    No larger number was measured, and the next smaller one was measured or is unusable.
    """
    size, sizes = known.parallel_plan.size, measured(situation, group, known)
    if max(sizes, default=0) > size:
        return False
    usable = [
        other.parallel_plan.size
        for other in there(situation, group)
        if is_like(other, known) and other.parallel_plan.size < size
        if may_fit(situation, group, other) and not is_ruled_out(situation, group, other)
    ]
    return not usable or max(usable) in sizes


def _model(situation: Situation, group: ModelGroup) -> str:
    return next(model for model in group.models if situation.remaining_batches.get(model, 0.0) > 0)
