"""Sorted cyclic with waits: a Latin square that is kept to, also where waiting for a model costs time.

Models, sorted by their work, and partitions stand on a circle, and each worker meets the models of its partition one
after the other around it. Where models are as many as partitions and their times are nearly equal ("narrow"), rules
that never wait fall into conflicts near the end; this pattern meets the bound. It has no slack to absorb noise or
unequal times, so it is for plans, for quiet clusters, and for the case n = p.

While models that have something left differ in priority, some go before others, which is no Latin square any more. Then
each worker takes the nearest on the circle of those of the highest priority that it can begin, and nobody waits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from cerebro.scheduling.dispatch_state import NEVER, Choice, DispatchState


class Cyclic:
    """Models go around the workers in a circle, and wait for each other.

    Sub-epochs are run by epoch, then by distance on the circle; workers and models both keep to that order, and since
    it is one order for all, somebody can always go on. Of a partition's holders one owns it and waits for its models in
    turn. A worker whose own partitions are done takes what others own, without waiting.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """The next sub-epoch on the circle; None while its model or worker is waited for."""
        if state.has_priorities:
            return _without_waits(state, workers)
        owners = _owners(state)
        circle = sorted(range(len(state.rank)), key=state.rank.__getitem__)
        earliest = min(
            (epoch for epoch, mask in zip(state.epoch, state.open, strict=True) if mask), default=1
        )
        for worker in workers:
            upcoming = [
                sub_epoch
                for partition, owner in enumerate(owners)
                if owner == worker and (sub_epoch := _upcoming(state, circle, earliest, worker, partition))
            ]
            if not upcoming:
                choice = _help(state, worker)
                if choice is not None:
                    return choice
                continue
            _, _, model, partition = min(upcoming)
            if _is_startable(state, owners, worker, model, partition):
                return Choice(worker, model, partition)
        return None


def _without_waits(state: DispatchState, workers: Sequence[int]) -> Choice | None:
    for worker in workers:
        found = [
            (state.epoch[model], _distance(state, model, partition), model, partition)
            for model, mask in state.eligible(worker)
            for partition in range(mask.bit_length())
            if mask >> partition & 1
        ]
        if found:
            return Choice(worker, *min(found)[2:])
    return None


def _owners(state: DispatchState) -> list[int]:
    """Of each partition the one of its holders that owns the fewest others; -1 if nobody holds it."""
    count = [0] * len(state.held)
    owners = []
    for partition in range(len(state.sizes)):
        owner = min(state.holders(partition), key=lambda worker: (count[worker], worker), default=-1)
        owners.append(owner)
        if owner >= 0:
            count[owner] += 1
    return owners


def _upcoming(
    state: DispatchState, circle: Sequence[int], earliest: int, worker: int, partition: int
) -> tuple[int, int, int, int] | None:
    """(epoch, distance, model, partition) of the partition's next sub-epoch, wherever its model is now.

    Args:
        state: as it is.
        circle: the models as they stand on it.
        earliest: epoch that any model is in; nothing comes before the first sub-epoch of it.
        worker: owner of the partition.
        partition: one of its own.
    """
    bit, best = 1 << partition, None
    for distance, model in _around(state, circle, partition):
        mask, epoch = state.open[model], state.epoch[model]
        if not mask or state.time[model][worker] == NEVER:
            continue
        if not mask & bit or (model in state.running and state.running[model].partition == partition):
            epoch += 1
        if epoch <= state.epochs[model] and (best is None or epoch < best[0]):
            best = (epoch, distance, model, partition)
            if epoch == earliest:
                break
    return best


def _around(state: DispatchState, circle: Sequence[int], partition: int) -> Iterator[tuple[int, int]]:
    """(distance, model), nearest first."""
    models = len(circle)
    around = max(models, len(state.sizes))
    place = _place(partition, len(state.sizes), around)
    first = -(-place * models // around)
    for rank in range(first, first + models):
        yield rank * around // models - place, circle[rank % models]


def _place(number: int, of: int, around: int) -> int:
    return number * around // of


def _is_startable(
    state: DispatchState, owners: Sequence[int], worker: int, model: int, partition: int
) -> bool:
    """Whether the model is there, and it is this partition's turn among its own too."""
    mask = state.open[model]
    if model in state.running or not mask >> partition & 1 or state.need[model][worker] > state.free[worker]:
        return False
    distance = _distance(state, model, partition)
    for other, owner in enumerate(owners):
        # Nobody waits for a partition whose owner is away, or cannot run the model.
        is_awaited = mask >> other & 1 and owner >= 0 and state.time[model][owner] != NEVER
        if is_awaited and _distance(state, model, other) < distance:
            return False
    return True


def _distance(state: DispatchState, model: int, partition: int) -> int:
    """From the partition to the model on the circle; both are spread evenly, models by rank."""
    models, partitions = len(state.rank), len(state.sizes)
    around = max(models, partitions)
    return (_place(state.rank[model], models, around) - _place(partition, partitions, around)) % around


def _help(state: DispatchState, worker: int) -> Choice | None:
    """The sub-epoch that others come to last, of all that the worker could take."""
    found = [
        (_distance(state, model, partition), model, partition)
        for model, mask in state.eligible(worker)
        for partition in range(mask.bit_length())
        if mask >> partition & 1
    ]
    return Choice(worker, *max(found)[1:]) if found else None
