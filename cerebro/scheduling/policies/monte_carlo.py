"""Monte-Carlo dry runs (thesis, section 4.2.2): play the rest of the run several ways, do what the best one did first.

The first dry run is critical first from here on. In the others each model and each worker is thought to have a little
more or less work left than it has, which changes the order of what is nearly equal. So the decision differs from
critical first's only where another beginning was seen to end sooner: better than a random order (the thesis's), and
than critical first too where models are not many more than workers, for a hundred times the computation.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from cerebro.scheduling.board import Board, Choice
from cerebro.scheduling.policies.critical_first import TOLERANCE, CriticalFirst

DRY_RUNS = 8
"""At most so many for a decision."""

MOST_UNITS = 2_000
"""At most so many units are played for a decision, all dry runs together. If not even two would fit, the decision is
critical first's."""

_BLUR = 1.0
"""How wrong the dry runs are about work left: standard deviation, in units of average length."""


class MonteCarlo:
    """The first step of the best of many dry runs."""

    def choose(self, board: Board, workers: Sequence[int], rng: random.Random) -> Choice | None:
        """The unit with which the shortest dry run began."""
        policy = CriticalFirst()
        best = policy.choose(board, workers, rng)
        units = _units_left(board)
        runs = min(DRY_RUNS, MOST_UNITS // max(1, units))
        if best is None or runs < 2:
            return best
        least, bound, mean = _play(board.copy(), best), _bound(board), sum(board.model_left) / units
        for _ in range(runs - 1):
            if least <= bound * (1 + TOLERANCE):
                break
            blurred = board.copy()
            blurred.model_left = [left + rng.gauss(0.0, _BLUR * mean) for left in board.model_left]
            blurred.worker_left = [left + rng.gauss(0.0, _BLUR * mean) for left in board.worker_left]
            choice = policy.choose(blurred, workers, rng)
            end = _play(blurred, choice) if choice else least
            if choice and end < least * (1 - TOLERANCE):
                best, least = choice, end
        return best


def _units_left(board: Board) -> int:
    later = sum(board.epochs - epoch for epoch in board.epoch) * len(board.sizes)
    return later + sum(mask.bit_count() for mask in board.open)


def _remaining(board: Board, model: int) -> float:
    """Seconds until the unit that runs should end. A model that is not ready is nowhere; `started` says when."""
    worker, partition, started = board.running[model]
    seconds = board.seconds(model, partition, worker) if worker >= 0 else 0.0
    return max(0.0, started + seconds - board.now)


def _bound(board: Board) -> float:
    """Seconds within which no continuation ends: the longest model's or worker's own work. A worker whose work others
    could do, or that runs several units at once, is left out."""
    models, workers = list(board.model_left), list(board.worker_left)
    for model, (worker, partition, _) in board.running.items():
        if worker >= 0:
            spent = board.seconds(model, partition, worker) - _remaining(board, model)
            models[model] -= spent
            workers[worker] -= spent
    is_plain = all(len(board.holders(p)) <= 1 for p in range(len(board.sizes))) and max(board.free) <= 1
    return max(*models, *workers) if is_plain else max(models)


def _play(board: Board, first: Choice) -> float:
    """Plays the rest on that board, critical first; seconds from now until the last unit ends.

    Units whose partition nobody holds now are left out: no beginning makes them end sooner.
    """
    ends = [(_remaining(board, model), model) for model in board.running]
    heapq.heapify(ends)
    policy, rng, now = CriticalFirst(), random.Random(0), 0.0
    choice: Choice | None = first
    while True:
        while choice:
            board.start(choice)
            seconds = board.seconds(choice.model, choice.partition, choice.worker)
            heapq.heappush(ends, (now + seconds, choice.model))
            idle = [worker for worker, gpus in enumerate(board.free) if gpus]
            choice = policy.choose(board, idle, rng) if idle else None
        if not ends:
            return now
        now = ends[0][0]
        while ends and ends[0][0] <= now * (1 + TOLERANCE):
            _finish(board, heapq.heappop(ends)[1])
        idle = [worker for worker, gpus in enumerate(board.free) if gpus]
        choice = policy.choose(board, idle, rng)


def _finish(board: Board, model: int) -> None:
    if board.running[model].worker >= 0:
        board.finish(model)
    else:
        del board.running[model]
