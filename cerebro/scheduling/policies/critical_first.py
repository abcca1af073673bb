"""Critical first: the worker with most remaining work takes the model with most remaining work. The default, `lrptw`.

Longest remaining processing time (LRPT) is the classical list rule of open shops for models. Here it also orders
the workers, because the makespan depends on the model or worker that finishes last. If workers chose in a fixed
order, the rule would be worse than random choices with as many models as workers. If idle workers compete for
models, `pairing` matches them all together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import or_

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies.pairing import pair
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement

_FEW = 8
"""Limit of idle workers for a pass over all models each.

Above it, sorting the models once is cheaper.
"""

TOLERANCE = 1e-9
"""Relative tolerance for sums of equal times in different orders; measured times differ by more."""


class CriticalFirst:
    """Longest remaining processing time of models and workers; see the module."""

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return the sub-epoch of the most critical worker and model that fit together."""
        return next(self.choices(state, workers), None)

    def choices(self, state: DispatchState, workers: Sequence[int]) -> Iterator[Placement]:
        """Yield the results of repeated `choose` calls, pairing and sorting only once.

        Before the next choice, the caller starts each one on the dispatch state or excludes its worker.
        """
        if state.holders.is_replicated:
            yield from _shared(state, workers)
        elif len(workers) == 1:
            yield from _choice(state, workers[0], most_left(state, workers[0]))
        else:
            yield from _in_turn(state, workers)


def _in_turn(state: DispatchState, workers: Sequence[int]) -> Iterator[Placement]:
    if workers and _is_scarce(state, workers):
        models = [model for model, mask in enumerate(state.open) if mask and model not in state.running]
        # An unsuccessful search for a worker costs as much as a successful one, and near the end of a run
        # many have no work.
        wanted = reduce(or_, (state.open[model] for model in models), 0)
        workers = [worker for worker in workers if state.holders.held[worker] & wanted]
        if len(workers) > 1 and _is_even(state, workers, models):
            yield from _paired(state, workers, models)
            return
    ordered = by_level(levels(state.work.worker_left, workers))
    if len(ordered) <= _FEW or state.has_priorities:
        for worker in ordered:
            yield from _choice(state, worker, most_left(state, worker))
        return
    idle = [model for model, mask in enumerate(state.open) if mask and model not in state.running]
    models = by_level(levels(state.work.model_left, idle))
    for worker in ordered:
        found = next((model for model in models if _could_start(state, worker, model)), None)
        yield from _choice(state, worker, found)
        if found is not None and found in state.running:
            models.remove(found)  # fast: only models that could not start come before it


def _could_start(state: DispatchState, worker: int, model: int) -> bool:
    return bool(
        state.open[model] & state.holders.held[worker]
        and model not in state.running
        and state.work.need[model][worker] <= state.free[worker]
        and state.work.time[model][worker] != NEVER
    )


def most_left(state: DispatchState, worker: int) -> int | None:
    """Return the eligible model with most remaining work; ties go to the first."""
    if state.has_priorities:
        found = [model for model, _ in state.eligible(worker)]
        return by_level(levels(state.work.model_left, found))[0] if found else None
    held, free, running, remaining_work = (
        state.holders.held[worker],
        state.free[worker],
        state.running,
        state.work.model_left,
    )
    best, most = None, -NEVER
    if held and free > 0:
        time, need = state.work.time, state.work.need
        for model, mask in enumerate(state.open):
            # The cheapest tests first: this loop dominates the cost of a decision.
            if remaining_work[model] <= most or not mask & held or model in running:
                continue
            if need[model][worker] <= free and time[model][worker] != NEVER:
                best, most = model, remaining_work[model] * (1 + TOLERANCE)
    return best


def levels(remaining_s: Sequence[float], subjects: Iterable[int]) -> dict[int, int]:
    """Return subject -> level: 0 for the most remaining work, then 1, and so on.

    Equals share a level.
    """
    found: dict[int, int] = {}
    level, last = -1, 0.0
    for subject in sorted(subjects, key=remaining_s.__getitem__, reverse=True):
        if level < 0 or remaining_s[subject] < last - abs(last) * TOLERANCE:
            level, last = level + 1, remaining_s[subject]
        found[subject] = level
    return found


def _levels_of_models(state: DispatchState, models: Sequence[int]) -> dict[int, int]:
    """Return `levels`, with models of higher priority first."""
    if not state.has_priorities:
        return levels(state.work.model_left, models)
    found: dict[int, int] = {}
    for priority in sorted({state.priority[model] for model in models}, reverse=True):
        first = max(found.values(), default=-1) + 1
        alike = (model for model in models if state.priority[model] == priority)
        found |= {model: first + level for model, level in levels(state.work.model_left, alike).items()}
    return found


def by_level(level: dict[int, int]) -> list[int]:
    """Sort the subjects by level, then by number."""
    return sorted(level, key=lambda subject: (level[subject], subject))


def _is_scarce(state: DispatchState, workers: Sequence[int]) -> bool:
    """Return whether one worker's choice could cost another its last model, or extend the makespan.

    Divides work by the time of one sub-epoch to estimate the number of remaining sub-epochs. Right only if all
    take equally long; `_in_turn` tests this afterwards with `_is_even`, which costs more.
    """
    loads = [state.work.worker_left[worker] for worker in workers]
    if max(state.work.model_left) >= max(loads) * (1 - TOLERANCE):
        return True  # a model with as much work as the busiest worker must start
    least_s = min(load * state.gpus[worker] for load, worker in zip(loads, workers, strict=True))
    sub_epochs_left = least_s / (state.work.time[0][workers[0]] + state.work.fixed[0][workers[0]])
    return sub_epochs_left - len(state.running) < sum(state.free[worker] for worker in workers)


def _is_even(state: DispatchState, workers: Sequence[int], models: Sequence[int]) -> bool:
    """Return whether all sub-epochs take equally long, judged by one row and one column.

    With unequal times, serving the most critical first was measured to be better than serving the largest
    number.
    """
    sub_epoch = state.work.time[models[0]][workers[0]] + state.work.fixed[models[0]][workers[0]]
    row = (state.work.time[models[0]][worker] + state.work.fixed[models[0]][worker] for worker in workers)
    column = (state.work.time[model][workers[0]] + state.work.fixed[model][workers[0]] for model in models)
    return all(abs(seconds - sub_epoch) <= TOLERANCE * sub_epoch for seconds in chain(row, column))


def _paired(state: DispatchState, workers: Sequence[int], models: Sequence[int]) -> Iterator[Placement]:
    """Yield a choice for each matched worker, the most critical first."""
    level = _levels_of_models(state, models)
    models = by_level(level)
    fits = _fits(state, by_level(levels(state.work.worker_left, workers)), models)
    places = _places(state, fits, models)
    found = pair(dict(enumerate(fits[worker] for worker in places)), [level[model] for model in models])
    for number, worker in enumerate(places):
        if number in found:
            yield from _choice(state, worker, models[found[number]])


def _places(state: DispatchState, workers: Iterable[int], models: Sequence[int]) -> list[int]:
    """Return each worker once per free GPU, in rounds over all workers.

    Only once if a model needs several GPUs.
    """
    ordered = list(workers)
    most = max(state.free[worker] for worker in ordered)
    if most > 1 and any(max(state.work.need[model]) > 1 for model in models):
        most = 1
    return [worker for number in range(most) for worker in ordered if state.free[worker] > number]


def _fits(state: DispatchState, workers: Sequence[int], models: Sequence[int]) -> dict[int, int]:
    """Return worker -> mask of the models (by position) that it could start."""
    need, time = state.work.need, state.work.time
    # Group models by open partitions: at the start of an epoch few sets differ.
    alike: dict[int, int] = {}
    for at, model in enumerate(models):
        alike[state.open[model]] = alike.get(state.open[model], 0) | 1 << at
    is_grouped = len(alike) * 8 <= len(models)
    # Python parses a binary string faster than it sets bits one by one; highest position first.
    wanted = [state.open[model] for model in reversed(models)]
    # Few models do not fit everywhere.
    special = [m for m in models if NEVER in time[m] or max(need[m]) > 1]
    place = {model: place for place, model in enumerate(models)}
    found = {}
    for worker in workers:
        held, free = state.holders.held[worker], state.free[worker]
        if free <= 0:
            mask = 0
        elif is_grouped:
            mask = reduce(or_, (places for opened, places in alike.items() if opened & held), 0)
        else:
            mask = int("".join(["1" if each & held else "0" for each in wanted]) or "0", 2)
        for model in special:
            if need[model][worker] > free or time[model][worker] == NEVER:
                mask &= ~(1 << place[model])
        found[worker] = mask
    return found


def _choice(state: DispatchState, worker: int, model: int | None) -> Iterator[Placement]:
    """Yield the choice of a model, if any, on its first open partition."""
    if model is not None:
        mask = state.open[model] & state.holders.held[worker]
        yield Placement(worker, model, (mask & -mask).bit_length() - 1)


# --- partitions with several holders ------------------------------------------------------------


def _shared(state: DispatchState, workers: Sequence[int]) -> Iterator[Placement]:
    """Apply the rule to partitions with several holders.

    A worker skips a sub-epoch if the delay compared with its fastest holder would extend the makespan. Otherwise
    slow workers, which finish last, would get the longest models.
    """
    horizon = max(*state.work.model_left, *state.work.worker_left)
    for worker in by_level(levels(state.work.worker_left, workers)):
        eligible = sorted(state.eligible(worker), key=lambda found: -state.work.model_left[found[0]])
        for model, mask in eligible:
            partition = _least_shared(state, model, worker, mask, horizon - state.work.model_left[model])
            if partition is not None:
                yield Placement(worker, model, partition)
                break
        else:
            # Do not idle or start a lower priority just because a faster worker exists.
            if eligible and sum(1 for _ in state.startable(worker)) > len(eligible):
                model, mask = eligible[0]
                partition = _least_shared(state, model, worker, mask, NEVER)
                assert partition is not None
                yield Placement(worker, model, partition)


def _least_shared(state: DispatchState, model: int, worker: int, mask: int, slack_s: float) -> int | None:
    """Return the partition that its other holders can least take over.

    For each partition, the other holder with the least remaining work counts; the partition where this work is
    largest is returned. Excludes partitions that this worker serves more than `slack_s` seconds slower than their
    fastest holder.
    """
    best, most = None, -NEVER
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        partition = lowest.bit_length() - 1
        holders = state.holders.of[partition]
        fastest_s = min(state.seconds(model, partition, w) for w in holders)
        delay_s = state.seconds(model, partition, worker) - fastest_s
        relief = min((state.work.worker_left[w] for w in holders if w != worker), default=NEVER)
        if delay_s <= slack_s * (1 + TOLERANCE) and relief > most:
            best, most = partition, relief
    return best
