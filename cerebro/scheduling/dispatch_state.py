"""State of a run at one instant, the input of dispatch policies.

The controller, the planner's simulations and the dispatch engine share this class, so policies behave alike
in all three. Each event updates it incrementally: starting or finishing a sub-epoch takes a few operations
for any number of models. In the MOP paper, sections 5.3 and 5.6, Q is `open` without `running`, and Q' is `running`;
a released sub-epoch returns from Q' to Q.

Each model has at most one parallel plan on each worker (`Problem.is_single`). The caller chooses it before.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from functools import reduce

from cerebro.scheduling.holders import Holders
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.remaining_work import NEVER, RemainingWork
from cerebro.scheduling.schedule import Placement

_RECOUNT_SHARE = 0.1
"""Share of partitions. If more change holders at once, all sums are computed from scratch."""


class DispatchState:
    """Free GPUs, open sub-epochs and remaining work. Not thread-safe: one owner.

    Attributes:
        work: estimates of sub-epochs, and sums of the remaining ones. Change estimates by `set_time` or
            `set_parallel_plan`.
        sizes: sizes of the partitions.
        holders: workers that have each partition. Change them by `hold` or `set_held`.
        open: ``open[m]``, mask of the partitions that model `m` still needs in its present epoch, including
            running ones.
        epoch_masks: ``epoch_masks[m]``, partitions of the model's epochs: all, except in a cross-validation.
        epoch, epochs: ``epoch[m]``, the model's present epoch, out of ``epochs[m]``, from 1 (0: no work yet, after
            `add_model`).
        priority: ``priority[m]``. Among the sub-epochs that could start on a worker, only the highest
            priority is eligible.
        running: model -> its running or queued sub-epoch, with the GPUs it started with. Idle models are absent.
        gpus: ``gpus[w]``, devices of worker `w` (GPUs, or CPU slots).
        free: ``free[w]``, its free GPUs.
        rank: ``rank[m]``, position of model `m` by its total work, longest first, as estimated at creation.
        priority_score: ``priority_score[m]``, value of training model `m` next by the policy's rule, larger
            first. An empty list means unknown. Always replaced as a whole.
        now: time of the newest change, in seconds.
    """

    def __init__(self, problem: Problem) -> None:
        if not problem.is_single:
            raise ValueError(
                "choose a parallel plan for each model and worker first: Problem.with_parallel_plans"
            )
        work = RemainingWork(
            [[plans[0].seconds if plans else NEVER for plans in row] for row in problem.parallel_plans],
            [[plans[0].fixed if plans else 0.0 for plans in row] for row in problem.parallel_plans],
            [[plans[0].gpus if plans else 1 for plans in row] for row in problem.parallel_plans],
            problem.gpus,
        )
        holders = Holders.from_lists(problem.holders, problem.num_workers)
        self._begin(work, holders, sizes=problem.sizes, gpus=problem.gpus, epochs=problem.epochs)
        self.open = list(problem.remaining_partitions)
        for m, mask in enumerate(self.open):
            if not mask and problem.epochs > 1:
                self.open[m], self.epoch[m] = self.epoch_masks[m], 2
        self.recount()
        order = sorted(range(problem.num_models), key=lambda m: (-self.work.model_left[m], m))
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
        state, workers = cls.__new__(cls), len(held)
        gpus = tuple(gpus or [1] * workers)
        work = RemainingWork(
            [[1.0] * workers for _ in range(models)],
            [[0.0] * workers for _ in range(models)],
            [[1] * workers for _ in range(models)],
            gpus,
        )
        state._begin(work, Holders(tuple(held), len(sizes)), sizes=sizes, gpus=gpus, epochs=epochs)
        state.recount()
        return state

    def _begin(
        self,
        work: RemainingWork,
        holders: Holders,
        *,
        sizes: Sequence[float],
        gpus: Sequence[int],
        epochs: int,
    ) -> None:
        models = len(work.time)
        self.work, self.holders = work, holders
        self.sizes, self.gpus, self.free = tuple(sizes), tuple(gpus), list(gpus)
        self.epoch_masks = [(1 << len(self.sizes)) - 1] * models
        self.open, self.epoch, self.epochs = list(self.epoch_masks), [1] * models, [epochs] * models
        self.priority = [0] * models
        self._had_priorities = False
        """True once a model had a priority other than 0. Until then `eligible` skips the comparison."""
        self.running: dict[int, Placement] = {}
        self.now = 0.0
        self.rank = list(range(models))
        self.priority_score: list[float] = []

    def copy(self) -> DispatchState:
        """Return a copy. It shares times, needs and ranks: change none of them while both are in use."""
        other = copy.copy(self)
        other.work = self.work.copy()
        for name in ("open", "epoch", "epochs", "priority", "free"):
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
        held, free, running = self.holders.held[worker], self.free[worker], self.running
        need, time = self.work.need, self.work.time
        if not held or free < 1:
            return
        for model, mask in enumerate(self.open):
            both = mask & held
            if both and model not in running and need[model][worker] <= free and time[model][worker] != NEVER:
                yield model, both

    def seconds(self, model: int, partition: int, worker: int) -> float:
        """Estimate the seconds of a sub-epoch; `NEVER` if it does not fit."""
        return self.work.seconds(model, self.sizes[partition], worker)

    # --- events ----------------------------------------------------------------------------------

    def start(self, chosen: Placement, at: float | None = None) -> None:
        """Start a sub-epoch: occupy the model and its GPUs, `chosen.gpus` of each worker for a gang."""
        worker, model, partition, *_ = chosen
        assert model not in self.running, f"model {model} is at {self.running[model]}"
        self.now = self.now if at is None else at
        need = chosen.gpus if chosen.other_members else self.work.need[model][worker]
        if chosen.group and self._first_of(chosen.group) is not None:
            need = 0  # the first sub-epoch of the group has the GPUs
        started = Placement(
            worker,
            model,
            partition,
            self.epoch[model],
            self.now,
            gpus=need,
            other_members=chosen.other_members,
            group=chosen.group,
            sharing=chosen.sharing,
        )
        for each, member in started.places:
            assert self.open[model] >> each & 1, f"model {model} does not need partition {each}"
            self.free[member] -= need
        self.running[model] = started

    def release(self, model: int) -> None:
        """Reopen the model's running sub-epoch after a failure or release. Undoes `start` exactly."""
        placement = self.running.pop(model)
        heir = self._first_of(placement.group) if placement.group and placement.gpus else None
        if heir is not None:
            self.running[heir] = self.running[heir]._replace(gpus=placement.gpus)
            return
        for _, worker in placement.places:
            self.free[worker] += placement.gpus

    def _first_of(self, group: str) -> int | None:
        """Return a running model of a fused group; `None` without any."""
        return next((model for model, placement in self.running.items() if placement.group == group), None)

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
            self.open[model] = self.epoch_masks[model]

    def reopen(self, model: int, partition: int) -> None:
        """Reopen the model's newest committed sub-epoch, on that partition."""
        if self.open[model] == self.epoch_masks[model] and self.epoch[model] > 1:
            self.epoch[model] -= 1
            self.open[model] = 0
        self.open[model] |= 1 << partition
        self._count(model, partition, +1)

    def drop(self, model: int) -> None:
        """Remove the model's remaining work. A running sub-epoch keeps its GPUs."""
        for partition in range(len(self.sizes)):
            self._count(model, partition, -self._sub_epochs_left(model, partition))
        self.open[model] = 0
        self.epoch[model] = self.epochs[model]

    def restore(self, model: int, epoch: int, open_mask: int) -> None:
        """Restore a dropped model at `epoch`, with the partitions of mask `open_mask` open."""
        self.epoch[model], self.open[model] = epoch, open_mask
        for partition in range(len(self.sizes)):
            self._count(model, partition, self._sub_epochs_left(model, partition))

    def set_partitions(self, epoch_masks: Sequence[int]) -> None:
        """Set the partitions of each model's epochs, before any model has trained; call `recount` afterwards.

        Args:
            epoch_masks: a mask for each model.
        """
        self.epoch_masks, self.open = list(epoch_masks), list(epoch_masks)

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
                self._count(model, partition, sign * self._sub_epochs_left(model, partition))
            if sign < 0:
                self.epochs[model], self.epoch[model], self.open[model] = epochs, epoch, open_mask

    def add_model(self, seconds: Sequence[float]) -> int:
        """Add a model without work and return its number; `set_epochs` adds the work.

        Args:
            seconds: seconds of a sub-epoch for size 1 on each worker, on one GPU.
        """
        model = len(self.open)
        self.work.add_model(seconds)
        self.open.append(0)
        self.epoch_masks.append((1 << len(self.sizes)) - 1)
        self.epoch.append(0)
        self.epochs.append(0)
        self.priority.append(0)
        self.rank.append(model)
        return model

    def set_held(self, worker: int, held: int) -> None:
        """Set the worker's partitions, as a bit mask; 0 if it is lost."""
        self.hold([held if w == worker else present for w, present in enumerate(self.holders.held)])

    def hold(self, held: Sequence[int]) -> None:
        """Set the partitions of all workers. Costs a pass over all models for each changed partition."""
        changed = reduce(operator.or_, map(operator.xor, self.holders.held, held), 0)
        holders = Holders(tuple(held), len(self.sizes))
        if changed.bit_count() > len(self.sizes) * _RECOUNT_SHARE:
            self.holders = holders
            self.recount()
            return
        partitions = [p for p in range(changed.bit_length()) if changed >> p & 1]
        for sign in (-1, +1):
            for partition in partitions:
                for model in range(len(self.open)):
                    self._count(model, partition, sign * self._sub_epochs_left(model, partition))
            if sign < 0:
                self.holders = holders
                # Clear rounding residue of workers without partitions.
                residues = zip(self.work.worker_left, held, strict=True)
                self.work.worker_left = [s if mask else 0.0 for s, mask in residues]

    def set_time(self, model: int, worker: int, seconds: float, fixed: float) -> None:
        """Update the estimate for a model on a worker."""
        work = self.work
        if work.time[model][worker] != seconds or work.fixed[model][worker] != fixed:
            self.set_parallel_plan(model, worker, seconds, work.need[model][worker], fixed)

    def set_times(self, time: list[list[float]], fixed: list[list[float]]) -> None:
        """Replace all estimates."""
        self.work.time, self.work.fixed = time, fixed
        self.recount()

    def set_parallel_plan(self, model: int, worker: int, seconds: float, need: int, fixed: float) -> None:
        """Set GPUs and times of the model's future sub-epochs on the worker. A running one is not changed."""
        self._weigh(model, worker, -1)
        self.work.set_parallel_plan(model, worker, seconds, need, fixed)
        self._weigh(model, worker, +1)

    # --- sums ------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Compute all sums of remaining work from scratch."""
        ahead = list(map(operator.sub, self.epochs, self.epoch))
        self.work.recount(ahead, self.epoch_masks, self.open, self.sizes, self.holders)

    def _sub_epochs_left(self, model: int, partition: int) -> int:
        ahead = (self.epochs[model] - self.epoch[model]) * (self.epoch_masks[model] >> partition & 1)
        return ahead + (self.open[model] >> partition & 1)

    def _count(self, model: int, partition: int, sub_epochs: int) -> None:
        """Add `sub_epochs` sub-epochs of the model on the partition to the sums."""
        self.work.add(model, sub_epochs, self.sizes[partition], self.holders.of[partition])

    def _weigh(self, model: int, worker: int, sign: int) -> None:
        mask = self.work.partitions_of(model, worker, self.holders)
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            partition = lowest.bit_length() - 1
            self._count(model, partition, sign * self._sub_epochs_left(model, partition))
