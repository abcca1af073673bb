"""Rotations: schedules of open shops that follow a Latin square, with waits. The planner's `local_search` varies them.

Dispatch never leaves a worker idle that could run a sub-epoch, which is right with more models than workers.
With as many models as workers and nearly equal times it breaks the pattern, and the last sub-epochs fit
badly. A rotation keeps the pattern: each worker takes the models around a circle and waits for the next one.
Sorted by work it meets the bound if sub-epoch times are a product of model and worker factors; otherwise a
search may reorder models, workers and rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.scheduling.planning.decoder import Decoder, Start


def is_open_shop(decoder: Decoder) -> bool:
    """Return whether partitions have one worker, and sub-epochs take all its GPUs."""
    problem = decoder.problem
    return decoder.is_fixed and all(
        w == home and decoder.need[w][m] == problem.gpus[w]
        for m, row in enumerate(decoder.work)
        for home, (_, [(w, _), *_]) in zip(_homes(decoder), row, strict=True)
    )


class Rotation:
    """Models, rounds and partitions in orders that may be changed in place between decodings.

    In round `r` of an epoch, model ``rows[j - r]`` trains on partition ``columns[j]``, cyclically, and early
    ones wait. Initially sorted by descending work.

    Args:
        decoder: decoder of an open shop (`is_open_shop`).

    Attributes:
        rows: the models, padded to the number of partitions with numbers without a model.
        rounds: the rounds, from 0.
        columns: the partitions.
    """

    def __init__(self, decoder: Decoder) -> None:
        problem = decoder.problem
        models, partitions = problem.num_models, problem.num_partitions
        around = max(models, partitions)
        self._problem = problem
        self._homes = _homes(decoder)
        self._seconds = [
            [_column(decoder, p, mask, around) for p in range(partitions)]
            for mask in (problem.remaining_partitions, (problem.all_partitions,) * models)
        ]
        remaining_work, load = decoder.model_left, decoder.worker_left
        self.rows = [*sorted(range(models), key=lambda m: -remaining_work[m]), *range(models, around)]
        self.rounds = list(range(around))
        self.columns = sorted(range(partitions), key=lambda p: -load[self._homes[p]])

    def makespan(self, starts: list[Start] | None = None) -> float:
        """Return the seconds until the last sub-epoch ends. Appends the sub-epochs to `starts`."""
        problem = self._problem
        model_free = [*problem.model_ready, *([0.0] * (len(self.rows) - problem.num_models))]
        # A sub-epoch takes all GPUs of its worker.
        worker_ready = [gpus[-1] for gpus in problem.gpu_ready]
        worker_free = worker_ready[:]
        rows = self.rows
        for epoch in range(problem.epochs):
            seconds = self._seconds[min(epoch, 1)]
            lanes = [(j, p, self._homes[p], seconds[p]) for j, p in enumerate(self.columns)]
            for r in self.rounds:
                for j, p, w, column in lanes:
                    m = rows[j - r]
                    if not column[m]:
                        continue
                    start, other = model_free[m], worker_free[w]
                    if other > start:  # noqa: PLR1730 - max() would cost a third of the loop
                        start = other
                    if starts is not None:
                        starts.append((start, m, p, w))
                    model_free[m] = worker_free[w] = start + column[m]
        ends = zip(worker_free, worker_ready, strict=True)
        return max((end for end, ready in ends if end > ready), default=0.0)


def _homes(decoder: Decoder) -> list[int]:
    """Return the worker of each partition."""
    return [shares[0][0] for _, shares in decoder.work[0]]


def _column(decoder: Decoder, partition: int, masks: Sequence[int], around: int) -> list[float]:
    """Return the seconds of each model's sub-epoch on the partition; 0 if none is needed."""
    found = [
        work[partition][0] if mask >> partition & 1 else 0.0
        for work, mask in zip(decoder.work, masks, strict=True)
    ]
    return [*found, *([0.0] * (around - len(found)))]
