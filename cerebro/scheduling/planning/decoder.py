"""`Decoder`: turns priorities into a schedule, thousands of times a second, for the searches of the planner.

Solves the same problem as `DispatchState` and the dispatch engine, but with plain lists and sorted order.
Calling a policy costs about ten times as much for each sub-epoch, and the quality of a search depends on the
number of schedules. It must not depend on the search's goal.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from cerebro.scheduling.planning.plan_table import NOT_HERE, PlanTable, allowed
from cerebro.scheduling.problem import Problem, shared_s
from cerebro.scheduling.schedule import Placement, Schedule

Start = tuple[float, int, int, int]
"""Start in seconds, model, partition, worker. A plain tuple for speed; `to_schedule` makes placements."""


class Decoded(NamedTuple):
    """A decoded schedule: makespan in seconds, and sub-epochs in the order of start."""

    makespan: float
    starts: list[Start]


class Decoder:
    """A problem with chosen parallel plans, for repeated decoding. Not thread-safe.

    Lists by worker have one more entry, for a worker without partitions; lists by model one more, for a model
    without work. With these, a late model or worker is an ordinary event.

    Attributes:
        is_fixed: True if each sub-epoch had only one place at creation.
        work: ``work[m][p]``, seconds of a sub-epoch of model `m` on partition `p` on its fastest place, and
            for each place its share of these seconds and GPUs.
        need: ``need[w][m]``, GPUs of a sub-epoch of model `m` on worker `w`.
        model_left: ``model_left[m]``, remaining seconds of model `m`, each sub-epoch on its fastest place.
        worker_left: ``worker_left[w]``, remaining seconds of worker `w` with all GPUs busy. Sub-epochs with
            several places are divided evenly.
    """

    def __init__(self, problem: Problem, plan_table: PlanTable) -> None:
        self.problem = problem
        self.plan_table = [list(row) for row in plan_table]
        models, workers = problem.num_models, problem.num_workers
        self._held = [0] * workers
        for p, holders in enumerate(problem.holders):
            for w in holders:
                self._held[w] |= 1 << p
        self._open = [*problem.remaining_partitions, 0]
        self._more = [problem.epochs - 1] * models + [0]
        for m, mask in enumerate(problem.remaining_partitions):
            if not mask and self._more[m]:
                self._open[m], self._more[m] = problem.all_partitions, self._more[m] - 1
        self._gpus = [*problem.gpus, 0]
        self._masks = [[0] * (models + 1) for _ in range(workers + 1)]
        self.need = [[0] * models + [1] for _ in range(workers)] + [[0] * (models + 1)]
        self._seconds = [[math.inf] * (workers + 1) for _ in range(models)]
        self._fixed = [[0.0] * (workers + 1) for _ in range(models)]
        self.work: list[list[tuple[float, list[tuple[int, float]]]]] = [[] for _ in range(models)]
        self.model_left = [0.0] * (models + 1)
        self.worker_left = [0.0] * (workers + 1)
        self._todo = [0] * (workers + 1)
        for m in range(models):
            self._lay_out(m)
        self._add_up()
        self.is_fixed = all(len(shares) == 1 for row in self.work for _, shares in row)

    @property
    def is_mixed(self) -> bool:
        """True if sub-epochs on some worker need different numbers of GPUs.

        Then a wide one may have to wait.
        """
        return any(
            len({need for need, mask in zip(needs, masks, strict=True) if mask}) > 1
            for needs, masks in zip(self.need, self._masks, strict=True)
        )

    def seconds(self, model: int, worker: int) -> float:
        """Return the seconds of the model's sub-epoch on the worker for size 1.

        Returns 0 if the model does not run there.
        """
        runs_here = self._masks[worker][model]
        return self._seconds[model][worker] + self._fixed[model][worker] if runs_here else 0.0

    # --- parallel plans ------------------------------------------------------------------------------

    def choose(self, rows: Mapping[int, Sequence[int]]) -> None:
        """Replace rows of the plan table."""
        for model, row in rows.items():
            self.plan_table[model] = list(row)
            self._lay_out(model)
        self._add_up()

    def _lay_out(self, model: int) -> None:
        problem, row = self.problem, self.plan_table[model]
        for w, plan_index in enumerate(row):
            if plan_index == NOT_HERE:
                self._masks[w][model] = 0
                continue
            parallel_plan = problem.parallel_plans[model][w][plan_index]
            self._masks[w][model] = self._held[w]
            self.need[w][model] = parallel_plan.gpus
            self._seconds[model][w], self._fixed[model][w] = parallel_plan.seconds, parallel_plan.fixed
        seconds, fixed = self._seconds[model], self._fixed[model]
        work = self.work[model] = []
        for p, size in enumerate(problem.sizes):
            places = allowed(problem, row, p)
            each = shared_s(seconds[w] * size + fixed[w] for w in places)
            shares = [(w, each * self.need[w][model] / problem.gpus[w]) for w in places]
            work.append((min(seconds[w] * size + fixed[w] for w in places), shares))
        sub_epochs = self._sub_epochs(model)
        self.model_left[model] = sum(count * work[p][0] for p, count in sub_epochs)

    def _add_up(self) -> None:
        load, todo = [0.0] * len(self.worker_left), [0] * len(self.worker_left)
        for m, work in enumerate(self.work):
            for p, count in self._sub_epochs(m):
                for w, share in work[p][1]:
                    load[w] += count * share
                    todo[w] += count
        self.worker_left, self._todo = load, todo

    def _sub_epochs(self, model: int) -> list[tuple[int, int]]:
        mask, more = self._open[model], self._more[model]
        return [(p, more + (mask >> p & 1)) for p in range(self.problem.num_partitions)]

    # --- dispatch --------------------------------------------------------------------------------

    def dispatch(
        self,
        priority: Sequence[Sequence[float]],
        *,
        cutoff: float = math.inf,
        width: int = 1,
        is_patient: bool = False,
    ) -> Decoded | None:
        """Serve idle workers by most remaining work, each with the model of highest priority.

        A model's priority is its remaining work plus its entry in `priority`. Without entries and with width
        1 this is LRPTw.

        Args:
            priority: ``priority[w][m]``, seconds to add to the remaining work of model `m` when worker `w`
                chooses.
            cutoff: stop when the makespan is certain to exceed this, in seconds.
            width: number of eligible models to compare, by most remaining work.
            is_patient: True to wait for GPUs if the chosen model needs more than are free, instead of serving
                another.

        Returns:
            The schedule, or `None` if it exceeds `cutoff`.
        """
        remaining_work, load, free = self.model_left[:], self.worker_left[:], self._gpus[:]
        open_, more = self._open[:], self._more[:]
        idle, waiting, events = self._arrivals(free)
        masks, needs, seconds, fixed, sizes, all_work = (
            self._masks,
            self.need,
            self._seconds,
            self._fixed,
            self.problem.sizes,
            self.work,
        )
        gpus, everything, is_fixed, todo = (
            self._gpus,
            self.problem.all_partitions,
            self.is_fixed,
            self._todo[:],
        )
        starts: list[Start] = []
        now = makespan = 0.0
        while True:
            if len(waiting) > 1:
                waiting.sort(key=load.__getitem__, reverse=True)
            unserved = []
            for w in waiting:  # grows: a worker with free GPUs is served again after the others
                need, mask = needs[w], masks[w]
                at = _pick(idle, open_, mask, priority[w], need, gpus[w] if is_patient else free[w], width)
                if at < 0 or need[idle[at][1]] > free[w]:
                    if todo[w] > 0:
                        unserved.append(w)
                    continue
                m = idle.pop(at)[1]
                p = self._partition(open_[m] & mask[m], w, load)
                end = now + seconds[m][w] * sizes[p] + fixed[m][w]
                if end > cutoff or (
                    is_fixed and (now + load[w] > cutoff or now + remaining_work[m] > cutoff)
                ):
                    return None
                work, shares = all_work[m][p]
                remaining_work[m] -= work
                for holder, share in shares:
                    load[holder] -= share
                    todo[holder] -= 1
                open_[m] ^= 1 << p
                free[w] -= need[m]
                starts.append((now, m, p, w))
                heappush(events, (end, m, w))
                makespan = end if end > makespan else makespan
                if free[w]:
                    waiting.append(w)
            waiting = unserved
            if not events:
                return Decoded(makespan, starts)
            now = events[0][0]
            while events and events[0][0] <= now:
                _, m, w = heappop(events)
                free[w] += needs[w][m]
                if not open_[m] and more[m]:
                    open_[m], more[m] = everything, more[m] - 1
                if open_[m]:
                    insort(idle, (-remaining_work[m], m))
                if w not in waiting:
                    waiting.append(w)

    def _arrivals(
        self, free: list[int]
    ) -> tuple[list[tuple[float, int]], list[int], list[tuple[float, int, int]]]:
        """Return initial models and workers, and the late ones as events. Occupies the GPUs of late ones."""
        problem = self.problem
        idle, waiting, events = [], [], []
        for m, ready in enumerate(problem.model_ready):
            if ready > 0:
                events.append((ready, m, problem.num_workers))
            elif self._open[m]:
                idle.append((-self.model_left[m], m))
        for w, gpus in enumerate(problem.gpu_ready):
            occupied = [ready for ready in gpus if ready > 0]
            free[w] -= len(occupied)
            events += [(ready, problem.num_models, w) for ready in occupied]
            if free[w]:
                waiting.append(w)
        heapify(events)
        return sorted(idle), waiting, events

    def _partition(self, both: int, worker: int, load: Sequence[float]) -> int:
        """Return the partition in the mask with the busiest other holders."""
        partition = both.bit_length() - 1
        if both == 1 << partition:
            return partition
        holders = self.problem.holders
        return max(
            (p for p in range(partition + 1) if both >> p & 1),
            key=lambda p: min((load[w] for w in holders[p] if w != worker), default=math.inf),
        )


def to_schedule(problem: Problem, plan_table: PlanTable, starts: Sequence[Start]) -> Schedule:
    """Build the schedule of the started sub-epochs with the parallel plans of the plan table."""
    completed_sub_epochs = [
        [1 - (mask >> p & 1) for p in range(problem.num_partitions)] for mask in problem.remaining_partitions
    ]
    sub_epochs = []
    for start, m, p, w in sorted(starts):
        parallel_plan = problem.parallel_plans[m][w][plan_table[m][w]]
        completed_sub_epochs[m][p] += 1
        sub_epochs.append(
            Placement(
                model=m,
                partition=p,
                worker=w,
                start=start,
                end=start + parallel_plan.sub_epoch_s(problem.sizes[p]),
                epoch=completed_sub_epochs[m][p],
                gpus=parallel_plan.gpus,
                technique=parallel_plan.technique,
            )
        )
    return Schedule.of(sub_epochs)


def _pick(  # noqa: PLR0917 - keyword names cost a tenth of the time of the innermost call
    idle: Sequence[tuple[float, int]],
    open_: Sequence[int],
    mask: Sequence[int],
    priority: Sequence[float],
    need: Sequence[int],
    gpus: int,
    width: int,
) -> int:
    """Return the position in `idle` of the best eligible model, or -1.

    Compares only the first `width` eligible models.
    """
    found, best = -1, -math.inf
    for at, (remaining_work, m) in enumerate(idle):
        if open_[m] & mask[m] and need[m] <= gpus:
            key = priority[m] - remaining_work
            if key > best:
                found, best = at, key
            width -= 1
            if not width:
                break
    return found
