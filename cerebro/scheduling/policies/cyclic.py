"""Sorted cyclic with waits: a Latin square that is kept to, also where waiting for a model costs time.

Models, sorted by their work, and partitions stand on a circle, and each worker meets the models of its partition one
after the other around it. Where models are as many as partitions and their times are nearly equal ("narrow"), rules
that never wait fall into conflicts near the end; this pattern meets the bound. It has no slack to absorb noise or
unequal times, so it is for plans, for quiet clusters, and for the case n = p.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from cerebro.scheduling.board import NEVER, Board, Choice


class Cyclic:
    """Models go around the workers in a circle, and wait for each other.

    Units are run by epoch, then by distance on the circle; workers and models both keep to that order, and since it is
    one order for all, somebody can always go on. Of a partition's holders one owns it and waits for its models in turn.
    A worker whose own partitions are done takes what others own, without waiting.
    """

    def choose(self, board: Board, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """The next unit on the circle; None while its model or worker is waited for."""
        owners = _owners(board)
        circle = sorted(range(len(board.rank)), key=board.rank.__getitem__)
        earliest = min(
            (epoch for epoch, mask in zip(board.epoch, board.open, strict=True) if mask), default=1
        )
        for worker in workers:
            upcoming = [
                unit
                for partition, owner in enumerate(owners)
                if owner == worker and (unit := _upcoming(board, circle, earliest, worker, partition))
            ]
            if not upcoming:
                choice = _help(board, worker)
                if choice is not None:
                    return choice
                continue
            _, _, model, partition = min(upcoming)
            if _is_startable(board, owners, worker, model, partition):
                return Choice(worker, model, partition)
        return None


def _owners(board: Board) -> list[int]:
    """Of each partition the one of its holders that owns the fewest others; -1 if nobody holds it."""
    count = [0] * len(board.held)
    owners = []
    for partition in range(len(board.sizes)):
        owner = min(board.holders(partition), key=lambda worker: (count[worker], worker), default=-1)
        owners.append(owner)
        if owner >= 0:
            count[owner] += 1
    return owners


def _upcoming(
    board: Board, circle: Sequence[int], earliest: int, worker: int, partition: int
) -> tuple[int, int, int, int] | None:
    """(epoch, distance, model, partition) of the partition's next unit, wherever its model is now.

    Args:
        board: as it is.
        circle: the models as they stand on it.
        earliest: epoch that any model is in; nothing comes before the first unit of it.
        worker: owner of the partition.
        partition: one of its own.
    """
    bit, best = 1 << partition, None
    for distance, model in _around(board, circle, partition):
        mask, epoch = board.open[model], board.epoch[model]
        if not mask or board.time[model][worker] == NEVER:
            continue
        if not mask & bit or (model in board.running and board.running[model].partition == partition):
            epoch += 1
        if epoch <= board.epochs and (best is None or epoch < best[0]):
            best = (epoch, distance, model, partition)
            if epoch == earliest:
                break
    return best


def _around(board: Board, circle: Sequence[int], partition: int) -> Iterator[tuple[int, int]]:
    """(distance, model), nearest first."""
    models = len(circle)
    around = max(models, len(board.sizes))
    place = _place(partition, len(board.sizes), around)
    first = -(-place * models // around)
    for rank in range(first, first + models):
        yield rank * around // models - place, circle[rank % models]


def _place(number: int, of: int, around: int) -> int:
    return number * around // of


def _is_startable(board: Board, owners: Sequence[int], worker: int, model: int, partition: int) -> bool:
    """Whether the model is there, and it is this partition's turn among its own too."""
    mask = board.open[model]
    if model in board.running or not mask >> partition & 1 or board.need[model][worker] > board.free[worker]:
        return False
    distance = _distance(board, model, partition)
    for other, owner in enumerate(owners):
        # Nobody waits for a partition whose owner is away, or cannot run the model.
        is_awaited = mask >> other & 1 and owner >= 0 and board.time[model][owner] != NEVER
        if is_awaited and _distance(board, model, other) < distance:
            return False
    return True


def _distance(board: Board, model: int, partition: int) -> int:
    """From the partition to the model on the circle; both are spread evenly, models by rank."""
    models, partitions = len(board.rank), len(board.sizes)
    around = max(models, partitions)
    return (_place(board.rank[model], models, around) - _place(partition, partitions, around)) % around


def _help(board: Board, worker: int) -> Choice | None:
    """The unit that others come to last, of all that the worker could take."""
    found = [
        (_distance(board, model, partition), model, partition)
        for model, mask in board.eligible(worker)
        for partition in range(mask.bit_length())
        if mask >> partition & 1
    ]
    return Choice(worker, *max(found)[1:]) if found else None
