"""Estimated seconds of a run's sub-epochs, and their sums over the remaining work.

Policies rank models and workers by the sums. `cerebro.scheduling.dispatch_state` keeps them up to date: each event
adds or subtracts only the sub-epochs that it concerns.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from cerebro.scheduling.holders import Holders
from cerebro.scheduling.problem import shared_s

NEVER = math.inf
"""Seconds of a sub-epoch that does not fit a worker."""


@dataclass
class RemainingWork:
    """Estimates of sub-epochs, and sums of the remaining ones. Not thread-safe.

    Attributes:
        time: ``time[m][w]``, estimated seconds of a sub-epoch of model `m` on worker `w` for a partition of
            size 1; `NEVER` if it does not fit.
        fixed: ``fixed[m][w]``, seconds of such a sub-epoch that do not depend on the size.
        need: ``need[m][w]``, GPUs of such a sub-epoch.
        gpus: ``gpus[w]``, GPUs of worker `w`.
        model_left: ``model_left[m]``, estimated remaining seconds of model `m` in all epochs, each sub-epoch on its
            fastest holder.
        worker_left: ``worker_left[w]``, estimated remaining seconds of worker `w` with all GPUs busy. Holders share a
            sub-epoch so that each is occupied equally long.
    """

    time: list[list[float]]
    fixed: list[list[float]]
    need: list[list[int]]
    gpus: Sequence[int]
    model_left: list[float] = field(init=False)
    worker_left: list[float] = field(init=False)
    _is_narrow: bool = field(init=False)
    """True if every sub-epoch takes one GPU."""

    def __post_init__(self) -> None:
        self.model_left, self.worker_left = [0.0] * len(self.time), [0.0] * len(self.gpus)
        self._is_narrow = all(count == 1 for row in self.need for count in row)

    def copy(self) -> RemainingWork:
        """Return a copy with independent sums. It shares times and needs: change neither while both are in use."""
        other = copy.copy(self)
        other.model_left, other.worker_left = list(self.model_left), list(self.worker_left)
        return other

    def seconds(self, model: int, size: float, worker: int) -> float:
        """Estimate the seconds of a sub-epoch; `NEVER` if it does not fit."""
        return self.time[model][worker] * size + self.fixed[model][worker]

    def add_model(self, seconds: Sequence[float]) -> None:
        """Add a model without work; `seconds` are its times for size 1 on each worker, on one GPU."""
        self.time.append([*seconds])
        self.fixed.append([0.0] * len(seconds))
        self.need.append([1] * len(seconds))
        self.model_left.append(0.0)

    def set_parallel_plan(self, model: int, worker: int, seconds: float, need: int, fixed: float) -> None:
        """Set GPUs and times of a model's sub-epochs on a worker. The caller corrects the sums."""
        self.time[model][worker], self.need[model][worker] = seconds, need
        self.fixed[model][worker] = fixed
        self._is_narrow = self._is_narrow and need == 1

    def add(self, model: int, sub_epochs: int, size: float, holders: Sequence[int]) -> None:
        """Add sub-epochs on a partition to the sums; subtract them if `sub_epochs` is negative.

        Args:
            sub-epochs: number of sub-epochs.
            size: size of the partition.
            holders: workers that have it.
        """
        if not sub_epochs:
            return
        row = self.time[model]
        if len(holders) == 1:
            worker = holders[0]
            if row[worker] != NEVER:
                seconds = row[worker] * size + self.fixed[model][worker]
                self.model_left[model] += sub_epochs * seconds
                self.worker_left[worker] += sub_epochs * seconds * self._share(model, worker)
            return
        fixed = self.fixed[model]
        fitting = [w for w in holders if row[w] != NEVER]
        if not fitting:
            # No present worker can run it: use the mean over all workers, so the model keeps its priority.
            known = [t * size + f for t, f in zip(row, fixed, strict=True) if t != NEVER]
            self.model_left[model] += sub_epochs * (sum(known) / len(known) if known else 0.0)
            return
        seconds_at = {w: row[w] * size + fixed[w] for w in fitting}
        self.model_left[model] += sub_epochs * min(seconds_at.values())
        share = sub_epochs * shared_s(seconds * self._share(model, w) for w, seconds in seconds_at.items())
        for w in fitting:
            self.worker_left[w] += share

    def recount(
        self,
        ahead: Sequence[int],
        epoch_masks: Sequence[int],
        open_masks: Sequence[int],
        sizes: Sequence[float],
        holders: Holders,
    ) -> None:
        """Compute the sums from scratch.

        Args:
            ahead: epochs of each model after its present one.
            epoch_masks: mask of the partitions of each model's epochs.
            open_masks: mask of the partitions that each model needs in its present epoch.
            sizes: size of each partition.
            holders: workers that have each partition.
        """
        self.model_left, self.worker_left = [0.0] * len(self.time), [0.0] * len(self.gpus)
        # Most partitions have one holder; sum these in bulk.
        single = [(p, workers[0], sizes[p]) for p, workers in enumerate(holders.of) if len(workers) == 1]
        other_partitions = [p for p, workers in enumerate(holders.of) if len(workers) != 1]
        totals = [0.0] * len(single)
        known: tuple[list[float], list[float], int, int, int] | None = None
        parts: list[float] = []
        single_work = 0.0
        for model, (row, epochs, every, mask) in enumerate(
            zip(self.time, ahead, epoch_masks, open_masks, strict=True)
        ):
            slowly: Sequence[int] = other_partitions
            if NEVER in row:
                slowly = range(len(sizes))
            else:
                fixed = self.fixed[model]
                inputs = row, fixed, epochs, every, mask
                if inputs != known:  # models without estimates have equal rows; there may be 1,000
                    known = inputs
                    parts = [
                        (epochs * (every >> p & 1) + (mask >> p & 1)) * (row[w] * size + fixed[w])
                        for p, w, size in single
                    ]
                    single_work = sum(parts)
                self.model_left[model] = single_work
                shares = parts
                if not self._is_narrow:
                    need = self.need[model]
                    shares = [part * need[w] for part, (_, w, _) in zip(parts, single, strict=True)]
                totals = list(map(operator.add, totals, shares))
            for p in slowly:
                self.add(model, epochs * (every >> p & 1) + (mask >> p & 1), sizes[p], holders.of[p])
        for (_, worker, _), total in zip(single, totals, strict=True):
            self.worker_left[worker] += total / self.gpus[worker]

    def partitions_of(self, model: int, worker: int, holders: Holders) -> int:
        """Return the mask of partitions whose sums depend on the model's estimate on the worker.

        Partitions without a fitting holder count with the mean over all workers, including this one.
        """
        row = self.time[model]
        mask = holders.held[worker] | holders.unheld
        if holders.is_replicated and NEVER in row:
            for partition, workers in enumerate(holders.of):
                if len(workers) > 1 and all(row[w] == NEVER for w in workers):
                    mask |= 1 << partition
        return mask

    def _share(self, model: int, worker: int) -> float:
        """Return the share of the worker's GPUs that a sub-epoch of the model occupies."""
        return self.need[model][worker] / self.gpus[worker]
