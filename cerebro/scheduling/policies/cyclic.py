"""Sorted cyclic (`cyclic`): follows a Latin square, even if waiting for a model costs time.

Models, sorted by their work, and partitions are placed on a circle; each worker trains the models of its
partition in the order of the circle. If models are as many as partitions and their times nearly equal
("narrow"), rules without waiting run into conflicts near the end; this pattern meets the bound. It has no
slack for noise or unequal times, so it suits plans, quiet clusters and the case n = p.

Different priorities break the Latin square. Then each worker takes the nearest startable model of the highest
priority, and no worker waits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement


class Cyclic:
    """Models move around the workers in a circle; both wait for each other.

    The order of sub-epochs is by epoch, then by distance on the circle. Workers and models share this one
    order, so there is always progress. One holder of each partition owns it and waits for its models in turn.
    A worker that has completed its own partitions takes sub-epochs of others, without waiting.
    """

    def choose(self, state: DispatchState, workers: Sequence[int], rng: random.Random) -> Placement | None:
        """Return the next sub-epoch on the circle; `None` while waiting for a model or worker."""
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
                return Placement(worker, model, partition)
        return None


def _without_waits(state: DispatchState, workers: Sequence[int]) -> Placement | None:
    for worker in workers:
        found = [
            (state.epoch[model], _distance(state, model, partition), model, partition)
            for model, mask in state.eligible(worker)
            for partition in range(mask.bit_length())
            if mask >> partition & 1
        ]
        if found:
            return Placement(worker, *min(found)[2:])
    return None


def _owners(state: DispatchState) -> list[int]:
    """Return each partition's owner: the holder that owns the fewest others; -1 without holders."""
    count = [0] * len(state.holders.held)
    owners = []
    for partition in range(len(state.sizes)):
        owner = min(state.holders.of[partition], key=lambda worker: (count[worker], worker), default=-1)
        owners.append(owner)
        if owner >= 0:
            count[owner] += 1
    return owners


def _upcoming(
    state: DispatchState, circle: Sequence[int], earliest: int, worker: int, partition: int
) -> tuple[int, int, int, int] | None:
    """Return (epoch, distance, model, partition) of the partition's next sub-epoch.

    The model may be busy.

    Args:
        state: the present state.
        circle: the models in their order on the circle.
        earliest: smallest present epoch of all models; the first sub-epoch of this epoch ends the search.
        worker: owner of the partition.
        partition: a partition of this owner.
    """
    bit, best = 1 << partition, None
    for distance, model in _around(state, circle, partition):
        mask, epoch = state.open[model], state.epoch[model]
        if not mask or state.work.time[model][worker] == NEVER:
            continue
        if not mask & bit or (model in state.running and state.running[model].partition == partition):
            epoch += 1
        if epoch <= state.epochs[model] and (best is None or epoch < best[0]):
            best = (epoch, distance, model, partition)
            if epoch == earliest:
                break
    return best


def _around(state: DispatchState, circle: Sequence[int], partition: int) -> Iterator[tuple[int, int]]:
    """Yield (distance, model), nearest first."""
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
    """Return whether the model is idle and this partition is its next one."""
    mask = state.open[model]
    if (
        model in state.running
        or not mask >> partition & 1
        or state.work.need[model][worker] > state.free[worker]
    ):
        return False
    distance = _distance(state, model, partition)
    for other, owner in enumerate(owners):
        # Do not wait for a partition with an owner that is away or cannot run the model.
        is_awaited = mask >> other & 1 and owner >= 0 and state.work.time[model][owner] != NEVER
        if is_awaited and _distance(state, model, other) < distance:
            return False
    return True


def _distance(state: DispatchState, model: int, partition: int) -> int:
    """Return the circle distance from partition to model. Both are spaced evenly, models by rank."""
    models, partitions = len(state.rank), len(state.sizes)
    around = max(models, partitions)
    return (_place(state.rank[model], models, around) - _place(partition, partitions, around)) % around


def _help(state: DispatchState, worker: int) -> Placement | None:
    """Return the sub-epoch its owner would reach last, among those this worker could take."""
    found = [
        (_distance(state, model, partition), model, partition)
        for model, mask in state.eligible(worker)
        for partition in range(mask.bit_length())
        if mask >> partition & 1
    ]
    return Placement(worker, *max(found)[1:]) if found else None
