"""Which trial is worth its time, if any is. Pure; knows nothing of torch, processes and the store.

A trial is worth it where there is a choice, and the choice could make the run shorter. Whether a model can be trained
at all, sub-epochs find out: where one runs out of memory, the next one, by the next way, is itself the trial. So:

- A way that cannot fit is not tried: its state alone, with what a trial of its group has shown of the optimizer's state
  and of activations, is more than `FULL` of a device or of the host.
- A way on k devices trains at most k times as fast, so all it can do is to shorten long chains: the sub-epochs of a
  model come one after another. Only models are tried whose chain, by the narrowest way that fits and without one
  sub-epoch of it, is longer than `LONG` of the load bound, which is all work spread evenly over all devices.
- The makespan is asked for with optimistic times, a speed-up in proportion to the devices over the nearest way that was
  measured. If the group without its own hope makes it longer by less than `WORTH`, there is no trial.

Numbers of devices are tried as they double.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.contract.trials import KnownParallelPlan, ModelGroup
from controller.sources.trials.memory import is_hopeless, may_fit
from controller.sources.trials.situation import (
    Measured,
    Situation,
    is_like,
    is_ruled_out,
    left_of,
    measured,
    outcome_of,
    there,
)
from controller.sources.trials.times import (
    Makespan,
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
"""Of the load bound."""
WORTH = 0.01
"""Of the makespan."""
LEAST_BATCHES, LEAST_S = 100, 30.0
"""That a model has left: below, a trial costs more than it could gain."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A trial that is worth its time.

    Attributes:
        known: the way.
        model: one of its group, to try it with.
    """

    group: ModelGroup
    known: KnownParallelPlan
    model: str

    @property
    def key(self) -> Measured:
        """As in `Situation.outcomes`."""
        return Measured(self.group.id, self.known.id)


def is_there_a_choice(
    devices: Sequence[int],
    left: Mapping[str, float],
    sub_epoch: Mapping[str, float],
    batch_s: Mapping[str, float],
) -> bool:
    """Whether anything could be gained by looking at the models of a run at all.

    Args:
        devices: of each worker that trains.
        left, sub-epoch, batch_s: as in `Situation`.
    """
    if max(devices, default=0) < 2 or not left:
        return False
    typical = sum(batch_s.values()) / len(batch_s) if batch_s else 1.0
    chains = {model: batches * batch_s.get(model, typical) for model, batches in left.items()}
    longest = max(chains, key=lambda model: chains[model])
    one_less = chains[longest] - sub_epoch.get(longest, 0.0) * batch_s.get(longest, typical)
    is_long = one_less > LONG * sum(chains.values()) / sum(devices)
    return is_long and is_worth_a_trial(left[longest], batch_s.get(longest))


def is_worth_a_trial(batches: float, batch_s: float | None) -> bool:
    """Whether so much is left of a model that a trial, which takes some dozens of batches and the start of processes,
    could pay.

    Args:
        batch_s: seconds of a batch; `None`: not known.
    """
    return batches >= LEAST_BATCHES and (batch_s is None or batches * batch_s >= LEAST_S)


def trials(situation: Situation, makespan: Makespan | None = None) -> Iterator[Wanted]:
    """Trials that are worth their time, the longest chain's first. Those after the first are for workers that could not
    do that: which of them are still worth it is to be asked again once one is under way.

    Args:
        makespan: of what is left; `lower_s` by default.
    """
    devices = sum(sum(sizes) for sizes in situation.devices.values())
    ask = makespan or (lambda parallel_plans: lower_s(parallel_plans, devices))
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
    # With all that is hoped for, and then without what is hoped of one group: of two chains of one length, shortening
    # either alone would gain nothing.
    best = times | {group.id: _with(times[group.id], hopes[group.id]) for group in long}
    for group in sorted(long, key=lambda group: -chains[group.id]):
        if hopes[group.id] and not _is_being_tried(situation, group):
            yield from _worthwhile(situation, group, hopes[group.id], _Asked(times, best, ask))


def _untried(situation: Situation, group: ModelGroup) -> Iterator[KnownParallelPlan]:
    """Ways of which no trial has told yet, and that may fit."""
    for known in there(situation, group):
        is_known = outcome_of(situation, group, known) is not None
        if not is_known and may_fit(situation, group, known) and not is_hopeless(situation, group, known):
            yield known


class _Asked(NamedTuple):
    """What the makespan is asked with."""

    times: Mapping[str, Mapping[Width, float]]
    """Of each group, as it is known."""
    best: Mapping[str, Mapping[Width, float]]
    """The same with all hopes."""
    makespan: Makespan


def _hopes(situation: Situation, group: ModelGroup) -> list[tuple[KnownParallelPlan, float]]:
    """Ways whose turn it is, and seconds of a batch at the best."""
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
        width = Width(known.place, known.parallel_plan.size)
        found[width] = min(seconds, found.get(width, seconds))
    return found


def _worthwhile(
    situation: Situation, group: ModelGroup, hopes: Sequence[tuple[KnownParallelPlan, float]], asked: _Asked
) -> Iterator[Wanted]:
    without = asked.makespan(parallel_plans_of(situation, {**asked.best, group.id: asked.times[group.id]}))
    found: list[tuple[float, Wanted]] = []
    for known, seconds in hopes:
        alone = _with(asked.times[group.id], [(known, seconds)])
        after = asked.makespan(parallel_plans_of(situation, {**asked.best, group.id: alone}))
        if after < without * (1 - WORTH):
            wanted = Wanted(group=group, known=known, model=_model(situation, group))
            found.append((after, wanted))
    # Few devices first; between equals decides the order of the inspection, which is that of the techniques.
    yield from (
        wanted for _, wanted in sorted(found, key=lambda pair: (pair[1].known.parallel_plan.size, pair[0]))
    )


def _is_being_tried(situation: Situation, group: ModelGroup) -> bool:
    return any(name == group.id for name, _ in situation.under_way)


def _is_next(situation: Situation, group: ModelGroup, known: KnownParallelPlan) -> bool:
    """Whether the way's number of devices is the next one to try: no larger one was measured, and the next smaller one
    was, or cannot be used."""
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
    return next(model for model in group.models if situation.left.get(model, 0.0) > 0)
