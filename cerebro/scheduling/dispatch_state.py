"""State of a run at one instant, the input of dispatch policies.

The controller, the planner's simulations and the dispatch engine share this class, so policies behave alike
in all three. Each event updates it incrementally: starting or finishing a sub-epoch takes a few operations
for any number of models. As in the seed paper, sections 5.3 and 5.6, open sub-epochs are Q and running ones
Q'; a released sub-epoch returns from Q' to Q.

Each model has at most one parallel plan on each worker (`Problem.is_single`). A plan chooses it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from cerebro.scheduling.problem import Problem, shared_s
from cerebro.scheduling.schedule import Placement

NEVER = math.inf

_MOST = 0.1
"""Share of partitions. If more change holders at once, all sums are computed from scratch."""


class DispatchState:
    """Free GPUs, open sub-epochs and remaining work. Not thread-safe: one owner.

    Attributes:
        time: ``time[m][w]``, estimated seconds of a sub-epoch of model `m` on worker `w` for a partition of
            size 1; `NEVER` if it does not fit. Change it by `set_time` or `set_parallel_plan`.
        fixed: ``fixed[m][w]``, seconds of such a sub-epoch that do not depend on the size.
        need: ``need[m][w]``, GPUs of such a sub-epoch.
        sizes: sizes of the partitions.
        held: ``held[w]``, mask of the partitions on worker `w`; 0 while it is away.
        open: ``open[m]``, mask of the partitions that model `m` still needs in its present epoch, including
            running ones.
        epoch, epochs: ``epoch[m]``, the model's present epoch, from 1, out of ``epochs[m]``.
        priority: ``priority[m]``. Among the sub-epochs that could start on a worker, only the highest
            priority is eligible.
        running: model -> its running or queued sub-epoch, with the GPUs it started with. Idle models are absent.
        gpus: ``gpus[w]``, GPUs of worker `w`; in a live run, its devices.
        free: ``free[w]``, its free GPUs.
        model_left: ``model_left[m]``, estimated remaining seconds of model `m` in all epochs, each sub-epoch
            on its fastest holder.
        worker_left: ``worker_left[w]``, estimated remaining seconds of worker `w` with all GPUs busy. Holders
            share a sub-epoch so that each is occupied equally long.
        rank: ``rank[m]``, position of model `m` by its total work, longest first, as estimated at creation.
        priority_score: ``priority_score[m]``, value of training model `m` next by the policy's rule, larger
            first. An empty list means unknown. Always replaced as a whole.
        is_replicated: True if some partition has several holders.
        now: time of the newest change, in seconds.
    """

    def __init__(self, problem: Problem) -> None:
        if not problem.is_single:
            raise ValueError(
                "choose a parallel plan for each model and worker first: Problem.with_parallel_plans"
            )
        self.sizes, self.epochs = problem.sizes, [problem.epochs] * problem.num_models
        held = [0] * problem.num_workers
        for p, workers in enumerate(problem.holders):
            for w in workers:
                held[w] |= 1 << p
        self._begin(
            [
                [parallel_plans[0].seconds if parallel_plans else NEVER for parallel_plans in row]
                for row in problem.parallel_plans
            ],
            [
                [parallel_plans[0].gpus if parallel_plans else 1 for parallel_plans in row]
                for row in problem.parallel_plans
            ],
            held,
            problem.gpus,
        )
        self.fixed = [
            [parallel_plans[0].fixed if parallel_plans else 0.0 for parallel_plans in row]
            for row in problem.parallel_plans
        ]
        self.open = list(problem.remaining_partitions)
        self._is_narrow = all(count == 1 for row in self.need for count in row)
        for m, mask in enumerate(self.open):
            if not mask and problem.epochs > 1:
                self.open[m], self.epoch[m] = self.everything, 2
        self.recount()
        order = sorted(range(problem.num_models), key=lambda m: (-self.model_left[m], m))
        for place, m in enumerate(order):
            self.rank[m] = place

    @classmethod
    def of_equals(
        cls,
        *,
        models: int,
        sizes: Sequence[float],
        held: Sequence[int],
        epochs: int,
        gpus: Sequence[int] | None = None,
    ) -> DispatchState:
        """Return a state for models without estimates: one second for size 1, on one GPU.

        Much faster than building a `Problem`, and partitions may have no holder.

        Args:
            sizes: sizes of the partitions.
            held: mask of partitions for each worker.
            gpus: GPUs of each worker; default 1.
        """
        state = cls.__new__(cls)
        state.sizes, state.epochs = tuple(sizes), [epochs] * models
        workers = len(held)
        state._begin(
            [[1.0] * workers for _ in range(models)],
            [[1] * workers for _ in range(models)],
            [*held],
            gpus or [1] * workers,
        )
        state.recount()
        return state

    def _begin(
        self, time: list[list[float]], need: list[list[int]], held: list[int], gpus: Sequence[int]
    ) -> None:
        self.time, self.need, self.held = time, need, held
        self.fixed = [[0.0] * len(held) for _ in time]
        self.gpus = tuple(gpus)
        self._is_narrow = True
        """True if every sub-epoch takes one GPU."""
        self.everything = (1 << len(self.sizes)) - 1
        self.open, self.epoch = [self.everything] * len(time), [1] * len(time)
        self.priority = [0] * len(time)
        self._had_priorities = False
        """True once a model had a priority other than 0. Until then `eligible` skips the comparison."""
        self.running: dict[int, Placement] = {}
        self.free = list(gpus)
        self.now = 0.0
        self.model_left = [0.0] * len(time)
        self.worker_left = [0.0] * len(held)
        self.rank = list(range(len(time)))
        self.priority_score: list[float] = []
        self._holders: list[tuple[int, ...]] = []
        self._unheld = 0
        self.is_replicated = False

    def copy(self) -> DispatchState:
        """Return an independent copy. It shares times and needs: do not change them while both are in use."""
        other = DispatchState.__new__(DispatchState)
        other.__dict__.update(self.__dict__)
        for name in ("held", "open", "epoch", "epochs", "priority", "free", "model_left", "worker_left"):
            setattr(other, name, list(getattr(self, name)))
        other.running = dict(self.running)
        return other

    # --- queries ---------------------------------------------------------------------------------

    @property
    def has_priorities(self) -> bool:
        """True if unfinished models differ in priority."""
        if not self._had_priorities:
            return False
        return len({priority for priority, mask in zip(self.priority, self.open, strict=True) if mask}) > 1

    def eligible(self, worker: int) -> Iterator[tuple[int, int]]:
        """Yield (model, mask of partitions) that may start on the worker, by ascending model.

        The model is idle and of the highest startable priority; the worker has enough free GPUs and a
        partition the model needs.
        """
        if not self.has_priorities:
            yield from self.startable(worker)
            return
        found = list(self.startable(worker))
        highest = max((self.priority[model] for model, _ in found), default=0)
        yield from ((model, mask) for model, mask in found if self.priority[model] == highest)

    def startable(self, worker: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of `eligible` for all priorities."""
        held, free, running, need = self.held[worker], self.free[worker], self.running, self.need
        if not held or free < 1:
            return
        for model, mask in enumerate(self.open):
            both = mask & held
            if (
                both
                and model not in running
                and need[model][worker] <= free
                and self.time[model][worker] != NEVER
            ):
                yield model, both

    def seconds(self, model: int, partition: int, worker: int) -> float:
        """Estimate the seconds of a sub-epoch; `NEVER` if it does not fit."""
        return self.time[model][worker] * self.sizes[partition] + self.fixed[model][worker]

    def holders(self, partition: int) -> tuple[int, ...]:
        """Return the workers that have the partition now."""
        return self._holders[partition]

    # --- events ----------------------------------------------------------------------------------

    def start(self, chosen: Placement, at: float | None = None) -> None:
        """Start a sub-epoch: occupy the model and its GPUs, `chosen.gpus` of each worker for a gang."""
        worker, model, partition, *_ = chosen
        assert model not in self.running, f"model {model} is at {self.running[model]}"
        self.now = self.now if at is None else at
        need = chosen.gpus if chosen.other_members else self.need[model][worker]
        started = Placement(
            worker,
            model,
            partition,
            self.epoch[model],
            self.now,
            gpus=need,
            other_members=chosen.other_members,
        )
        for each, member in started.places:
            assert self.open[model] >> each & 1, f"model {model} does not need partition {each}"
            self.free[member] -= need
        self.running[model] = started

    def release(self, model: int) -> None:
        """Reopen the model's running sub-epoch after a failure or release. Undoes `start` exactly."""
        placement = self.running.pop(model)
        for _, worker in placement.places:
            self.free[worker] += placement.gpus

    def finish(self, model: int, at: float | None = None) -> None:
        """Commit the model's running sub-epoch. After its last partition the next epoch opens."""
        places = self.running[model].places
        self.release(model)
        self.now = self.now if at is None else at
        for partition, _ in places:
            self._count(model, partition, -1)
            self.open[model] &= ~(1 << partition)
        if not self.open[model] and self.epoch[model] < self.epochs[model]:
            self.epoch[model] += 1
            self.open[model] = self.everything

    def reopen(self, model: int, partition: int) -> None:
        """Reopen the model's newest committed sub-epoch, on that partition."""
        if self.open[model] == self.everything and self.epoch[model] > 1:
            self.epoch[model] -= 1
            self.open[model] = 0
        self.open[model] |= 1 << partition
        self._count(model, partition, +1)

    def drop(self, model: int) -> None:
        """Remove the model's remaining work. A running sub-epoch keeps its GPUs."""
        for partition in range(len(self.sizes)):
            self._count(model, partition, -self._visits_left(model, partition))
        self.open[model] = 0
        self.epoch[model] = self.epochs[model]

    def restore(self, model: int, epoch: int, open_mask: int) -> None:
        """Restore a dropped model at `epoch`, with the partitions of mask `open_mask` open."""
        self.epoch[model], self.open[model] = epoch, open_mask
        for partition in range(len(self.sizes)):
            self._count(model, partition, self._visits_left(model, partition))

    def set_priority(self, model: int, priority: int) -> None:
        """Set the model's priority; higher ones go first."""
        self.priority[model] = priority
        self._had_priorities = self._had_priorities or priority != 0

    def set_epochs(self, model: int, epochs: int, epoch: int, open_mask: int) -> None:
        """Set the model's number of epochs and its present position.

        Args:
            epochs: number of epochs in all.
            epoch: present epoch.
            open_mask: mask of the open partitions.
        """
        for sign in (-1, +1):
            for partition in range(len(self.sizes)):
                self._count(model, partition, sign * self._visits_left(model, partition))
            if sign < 0:
                self.epochs[model], self.epoch[model], self.open[model] = epochs, epoch, open_mask

    def add_model(self, seconds: Sequence[float]) -> int:
        """Add a model without work and return its number; `set_epochs` adds the work.

        Args:
            seconds: seconds of a sub-epoch for size 1 on each worker, on one GPU.
        """
        model = len(self.time)
        self.time.append([*seconds])
        self.fixed.append([0.0] * len(seconds))
        self.need.append([1] * len(seconds))
        self.open.append(0)
        self.epoch.append(0)
        self.epochs.append(0)
        self.priority.append(0)
        self.model_left.append(0.0)
        self.rank.append(model)
        return model

    def set_held(self, worker: int, held: int) -> None:
        """Set the worker's partitions, as a bit mask; 0 if it is lost."""
        self.hold([held if w == worker else partitions for w, partitions in enumerate(self.held)])

    def hold(self, held: list[int]) -> None:
        """Set the partitions of all workers. Costs a pass over all models for each changed partition."""
        changed = reduce(operator.or_, map(operator.xor, self.held, held), 0)
        if changed.bit_count() > len(self.sizes) * _MOST:
            self.held = held
            self.recount()
            return
        partitions = [p for p in range(changed.bit_length()) if changed >> p & 1]
        for sign in (-1, +1):
            for partition in partitions:
                for model in range(len(self.time)):
                    self._count(model, partition, sign * self._visits_left(model, partition))
            if sign < 0:
                self.held = held
                self._see_holders()
                # Clear rounding residue of workers without partitions.
                self.worker_left = [
                    s if mask else 0.0 for s, mask in zip(self.worker_left, held, strict=True)
                ]

    def set_time(self, model: int, worker: int, seconds: float, fixed: float) -> None:
        """Update the estimate for a model on a worker."""
        if self.time[model][worker] != seconds or self.fixed[model][worker] != fixed:
            self.set_parallel_plan(model, worker, seconds, self.need[model][worker], fixed)

    def set_times(self, time: list[list[float]], fixed: list[list[float]]) -> None:
        """Replace all estimates."""
        self.time, self.fixed = time, fixed
        self.recount()

    def set_parallel_plan(self, model: int, worker: int, seconds: float, need: int, fixed: float) -> None:
        """Set GPUs and times of the model's future sub-epochs on the worker. A running one is not changed."""
        self._weigh(model, worker, -1)
        self.time[model][worker], self.need[model][worker] = seconds, need
        self.fixed[model][worker] = fixed
        self._is_narrow = self._is_narrow and need == 1
        self._weigh(model, worker, +1)

    # --- sums ------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Compute all sums of remaining work from scratch."""
        self._see_holders()
        self.model_left = [0.0] * len(self.time)
        self.worker_left = [0.0] * len(self.held)
        # Most partitions have one holder; sum these in bulk.
        single = [
            (p, holders[0], self.sizes[p]) for p, holders in enumerate(self._holders) if len(holders) == 1
        ]
        other_partitions = [p for p, holders in enumerate(self._holders) if len(holders) != 1]
        totals = [0.0] * len(single)
        known: tuple[list[float], list[float], int, int] | None = None
        parts: list[float] = []
        single_work = 0.0
        for model, row in enumerate(self.time):
            ahead, mask = self.epochs[model] - self.epoch[model], self.open[model]
            slowly: Iterable[int] = other_partitions
            if NEVER in row:
                slowly = range(len(self.sizes))
            else:
                fixed = self.fixed[model]
                inputs = row, fixed, ahead, mask
                if inputs != known:  # models without estimates have equal rows; there may be 1,000
                    known = inputs
                    parts = [(ahead + (mask >> p & 1)) * (row[w] * size + fixed[w]) for p, w, size in single]
                    single_work = sum(parts)
                self.model_left[model] = single_work
                shares = parts
                if not self._is_narrow:
                    need = self.need[model]
                    shares = [part * need[w] for part, (_, w, _) in zip(parts, single, strict=True)]
                totals = list(map(operator.add, totals, shares))
            for partition in slowly:
                self._count(model, partition, self._visits_left(model, partition))
        for (_, worker, _), total in zip(single, totals, strict=True):
            self.worker_left[worker] += total / self.gpus[worker]

    def _see_holders(self) -> None:
        found: list[list[int]] = [[] for _ in self.sizes]
        for worker, held in enumerate(self.held):
            remaining_mask = held
            while remaining_mask:
                lowest = remaining_mask & -remaining_mask
                remaining_mask ^= lowest
                found[lowest.bit_length() - 1].append(worker)
        self._holders = [tuple(workers) for workers in found]
        self.is_replicated = any(len(holders) > 1 for holders in self._holders)
        self._unheld = sum(1 << p for p, holders in enumerate(self._holders) if not holders)

    def _share(self, model: int, worker: int) -> float:
        """Return the share of the worker's GPUs that a sub-epoch of the model occupies."""
        return self.need[model][worker] / self.gpus[worker]

    def _visits_left(self, model: int, partition: int) -> int:
        return self.epochs[model] - self.epoch[model] + (self.open[model] >> partition & 1)

    def _count(self, model: int, partition: int, visits: int) -> None:
        """Add `visits` sub-epochs of the model on the partition to the sums."""
        if not visits:
            return
        holders, row, size = self._holders[partition], self.time[model], self.sizes[partition]
        if len(holders) == 1:
            worker = holders[0]
            if row[worker] != NEVER:
                seconds = row[worker] * size + self.fixed[model][worker]
                self.model_left[model] += visits * seconds
                self.worker_left[worker] += visits * seconds * self._share(model, worker)
            return
        fixed = self.fixed[model]
        fitting = [w for w in holders if row[w] != NEVER]
        if not fitting:
            # No present worker can run it: use the mean over all workers, so the model keeps its priority.
            known = [t * size + f for t, f in zip(row, fixed, strict=True) if t != NEVER]
            self.model_left[model] += visits * (sum(known) / len(known) if known else 0.0)
            return
        seconds_at = {w: row[w] * size + fixed[w] for w in fitting}
        self.model_left[model] += visits * min(seconds_at.values())
        share = visits * shared_s(seconds * self._share(model, w) for w, seconds in seconds_at.items())
        for w in fitting:
            self.worker_left[w] += share

    def _weigh(self, model: int, worker: int, sign: int) -> None:
        # Partitions without a fitting holder count with the mean over all workers, including this one.
        row = self.time[model]
        mask = self.held[worker] | self._unheld
        if self.is_replicated and NEVER in row:
            for partition, holders in enumerate(self._holders):
                if len(holders) > 1 and all(row[w] == NEVER for w in holders):
                    mask |= 1 << partition
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            partition = lowest.bit_length() - 1
            self._count(model, partition, sign * self._visits_left(model, partition))
