"""The planner's search over orders of sub-epochs, for problems with a choice of parallel plans or replicas.

Dispatch by priorities (`local_search`) finds good parallel plans and a good start, but never leaves GPUs idle for
a wide sub-epoch, which a tight packing needs. Here a schedule is a list of sub-epochs; each starts when its
model and enough GPUs are free after the earlier ones. Some list gives a shortest schedule (reason:
`exact.required_sub_epochs.starts`), and decoding a list takes a tenth of the time of a dispatch.

When the search stalls, every model with a chain nearly as long as the best schedule gets faster parallel plans,
and the search continues from there (iterated local search, Lourenco et al., 2003). Changing one model at a
time would not help: if several models are longest, shortening one does not shorten the schedule. Without a
choice of parallel plans, part of the list is shuffled instead.

Must not read a clock or use bounds.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cerebro.scheduling.planning.decoder import Start
from cerebro.scheduling.planning.local_search import Candidate
from cerebro.scheduling.planning.plan_table import NOT_HERE, has_choice, of_width, widths
from cerebro.scheduling.problem import Problem

_HISTORY = 20
_MAX_STALLED_STEPS, _MAX_STALLED_PER_SUB_EPOCH = 1000, 20
"""Decodings without improvement (the smaller number applies) after which `search_orders` restarts."""
_MAX_KICKS = 8
"""Restarts in a row without a better schedule after which the search ends."""
_WIDENED = (0.93, 0.99)
"""Range of the target length of widened models, relative to the best makespan.

Chosen at random each time.
"""
_BACK = 0.7
"""Share of restarts from the best schedule; the others start from the present one."""
_STEPS = 8
"""Decodings for each yielded item."""
_OTHER_ROWS, _ALIKE, _SWAPS = 0.3, 0.5, 0.7
"""Cumulative shares of moves.

Parallel plans of whole models, swaps within a model or worker, any swaps. The rest moves a sub-epoch.
"""
_EVERYWHERE, _EACH = 0.3, 0.6
"""Cumulative shares of changes to models: equal width everywhere, on one worker. The rest changes entries."""
_OTHER_PLAN = 0.35
"""Share of moved sub-epochs that also change their plan."""
_SOURCE = "local search over orders"


class _Item(NamedTuple):
    """A sub-epoch in a list. Not a `Placement`: the inner loop unpacks it, and four fields are faster."""

    model: int
    partition: int
    worker: int
    epoch: int


def search_orders(problem: Problem, start: Candidate, rng: random.Random) -> Iterator[Candidate | None]:
    """Search for better schedules until restarts stop helping.

    Args:
        problem: any problem.
        start: a schedule to start from.
        rng: seeded by the caller.

    Yields:
        A better schedule or `None`, after several decodings each.
    """
    order = _Orders(problem, start)
    best, kicks = order.makespan(order.items, math.inf), 0
    best_order, is_fixed = order.snapshot(), not has_choice(problem)
    while order.items and kicks <= _MAX_KICKS:
        for found in _late_acceptance(order, rng):
            if found is not None and found.makespan < best:
                best, kicks, best_order = found.makespan, 0, order.snapshot()
                yield found
            else:
                yield None
        kicks += 1
        if rng.random() < _BACK:
            order.go_back(best_order)
        if is_fixed:
            order.mix(rng)
        else:
            order.widen(best * rng.uniform(*_WIDENED), rng)


def _late_acceptance(order: _Orders, rng: random.Random) -> Iterator[Candidate | None]:
    """Yield schedules that improve on this start, until the search stalls."""
    current = best = order.makespan(order.items, math.inf)
    history, stalled, step = [current] * _HISTORY, 0, 0
    limit = min(_MAX_STALLED_STEPS, _MAX_STALLED_PER_SUB_EPOCH * len(order.items))
    while stalled < limit:
        is_better = False
        for _ in range(_STEPS):
            step, stalled = step + 1, stalled + 1
            at = step % _HISTORY
            items, rows = order.neighbour(rng)
            previous_rows = order.put(rows)
            makespan = order.makespan(items, max(current, history[at]))
            if makespan < math.inf:
                current, order.items = makespan, items
            else:
                order.put(previous_rows)
            history[at] = current
            if current < best:
                best, stalled, is_better = current, 0, True
                break  # a later, worse one may be accepted and would replace it
        yield order.candidate() if is_better else None


class _Orders:
    """A list of sub-epochs and the rows of a plan table.

    Attributes:
        items: the list; sub-epochs of a model are in the order of their epochs.
        rows: the plan table; no entry is `NOT_HERE` where the model fits.
    """

    def __init__(self, problem: Problem, start: Candidate) -> None:
        self._problem = problem
        self._is_long = problem.epochs > 1
        self._twins = problem.twins()
        self._kind = {m: number for number, alike in enumerate(self._twins) for m in alike}
        self._widths = [widths(problem, m) for m in range(problem.num_models)]
        self._known: dict[tuple[int, ...], list[tuple[int, list[float]]]] = {}
        sub_epochs = [
            [1 - (mask >> p & 1) for p in range(problem.num_partitions)]
            for mask in problem.remaining_partitions
        ]
        self.items: list[_Item] = []
        for _, m, p, w in sorted(start.starts):
            sub_epochs[m][p] += 1
            self.items.append(_Item(m, p, w, sub_epochs[m][p]))
        self.rows: list[list[int]] = []
        for m, row in enumerate(start.plan_table):
            gpus = [problem.parallel_plans[m][w][s].gpus for w, s in enumerate(row) if s != NOT_HERE]
            wide = of_width(problem, m, max(gpus, default=1))
            self.rows.append([other if s == NOT_HERE else s for s, other in zip(row, wide, strict=True)])
        self._parallel_plans = [self._laid_out(m, row) for m, row in enumerate(self.rows)]

    def put(self, rows: dict[int, list[int]]) -> dict[int, list[int]]:
        """Replace rows; return the previous ones."""
        previous_rows = {m: self.rows[m] for m in rows}
        for m, row in rows.items():
            self.rows[m] = row
            self._parallel_plans[m] = self._laid_out(m, row)
        return previous_rows

    def snapshot(self) -> tuple[list[_Item], list[list[int]]]:
        """Return copies of the list and the rows, for `go_back`."""
        return self.items[:], [list(row) for row in self.rows]

    def go_back(self, snapshot: tuple[list[_Item], list[list[int]]]) -> None:
        """Restore copies from `snapshot`."""
        self.items = snapshot[0][:]
        self.put({m: list(row) for m, row in enumerate(snapshot[1])})

    def mix(self, rng: random.Random) -> None:
        """Shuffle part of the list. Sub-epochs of a model keep the order of their epochs."""
        first, last = sorted(rng.sample(range(len(self.items) + 1), 2))
        stretch = rng.sample(self.items[first:last], last - first)
        by_epoch = sorted(stretch, key=lambda item: item.epoch)
        mine = {
            m: iter([item for item in by_epoch if item.model == m]) for m in {item.model for item in stretch}
        }
        self.items[first:last] = [next(mine[item.model]) for item in stretch]

    def widen(self, limit: float, rng: random.Random) -> None:
        """Choose faster parallel plans at random for each model with a chain longer than `limit` seconds."""
        sub_epochs: list[dict[int, list[int]]] = [defaultdict(list) for _ in self.rows]
        for m, p, w, _ in self.items:
            sub_epochs[m][w].append(p)
        for m, mine in enumerate(sub_epochs):
            self.put({m: self._widened(m, mine, limit, rng)})

    def _widened(
        self, model: int, sub_epochs: Mapping[int, Sequence[int]], limit: float, rng: random.Random
    ) -> list[int]:
        row, ready = list(self.rows[model]), self._problem.model_ready[model]
        while sub_epochs:
            laid = self._laid_out(model, row)
            if ready + sum(laid[w][1][p] for w, mine in sub_epochs.items() for p in mine) <= limit:
                break
            steps = [(w, s) for w in sub_epochs for s in self._faster(model, w, row[w])]
            if not steps:
                break
            w, s = rng.choice(steps)
            row[w] = s
        return row

    def _faster(self, model: int, worker: int, plan_index: int) -> list[int]:
        size, parallel_plans = self._problem.mean_size, self._problem.parallel_plans[model][worker]
        seconds = parallel_plans[plan_index].sub_epoch_s(size)
        return [
            s for s, parallel_plan in enumerate(parallel_plans) if parallel_plan.sub_epoch_s(size) < seconds
        ]

    def neighbour(self, rng: random.Random) -> tuple[list[_Item], dict[int, list[int]]]:
        """Return a changed list, and the rows to change.

        The moves: other parallel plans for some models; two sub-epochs swapped, any two or of one model or
        worker; a sub-epoch moved, possibly to another holder or plan.
        """
        items, rnd, what = self.items, rng.random, rng.random()
        if what < _OTHER_ROWS:
            return items, self._other_rows(rng)
        items = items[:]
        i, j = int(rnd() * len(items)), int(rnd() * len(items))
        if what < _SWAPS:
            if what < _ALIKE:
                which = 0 if rnd() < 0.5 else 2  # of one model, or of one worker
                alike = [k for k, item in enumerate(items) if item[which] == items[i][which]]
                j = alike[int(rnd() * len(alike))]
            items[i], items[j] = items[j], items[i]
            return items, {}
        item = items.pop(i)
        if len(self._problem.holders[item.partition]) > 1 and rnd() < 0.5:
            item = item._replace(worker=rng.choice(self._problem.places(item.model, item.partition)))
        items.insert(j, item)
        if rnd() < _OTHER_PLAN:
            return items, {item.model: self._other_entry(item.model, item.worker, rng)}
        return items, {}

    def makespan(self, items: list[_Item], cutoff: float, starts: list[Start] | None = None) -> float:
        """Return the seconds until the last sub-epoch ends.

        Returns infinity above `cutoff` or if epochs are out of order. Appends the sub-epochs to `starts`.
        """
        problem, parallel_plans, longest = self._problem, self._parallel_plans, 0.0
        model_free = list(problem.model_ready)
        gpu_free = [list(ready) for ready in problem.gpu_ready]
        epochs = [0] * problem.num_models
        for m, p, w, epoch in items:
            if self._is_long:
                if epoch < epochs[m]:
                    return math.inf
                epochs[m] = epoch
            need, seconds = parallel_plans[m][w]
            free = gpu_free[w]
            begin = free[need - 1]
            if model_free[m] > begin:  # noqa: PLR1730 - max() would cost a third of the loop
                begin = model_free[m]
            end = begin + seconds[p]
            if end > cutoff:
                return math.inf
            if starts is not None:
                starts.append((begin, m, p, w))
            model_free[m] = end
            free[:need] = [end] * need
            free.sort()
            if end > longest:  # noqa: PLR1730
                longest = end
        return longest

    def candidate(self) -> Candidate:
        """Return the list as a schedule."""
        starts: list[Start] = []
        makespan = self.makespan(self.items, math.inf, starts)
        return Candidate(makespan, starts, [list(row) for row in self.rows], _SOURCE)

    def _some(self, rng: random.Random) -> list[int]:
        """Choose models to change: one, two that may exchange GPUs, or several equal ones.

        If equal models are the longest, shortening only one does not help.
        """
        what, twins = rng.random(), rng.choice(self._twins)
        if what < 0.4:
            return rng.sample(twins, rng.randint(1, len(twins)))
        return rng.sample(range(len(self.rows)), min(len(self.rows), 1 if what < 0.8 else 2))

    def _other_rows(self, rng: random.Random) -> dict[int, list[int]]:
        """Change parallel plans of some models: equal width everywhere or on one worker, or single entries."""
        models, what = self._some(rng), rng.random()
        if what >= _EACH:
            return {m: self._other_entry(m, rng.randrange(len(self.rows[m])), rng) for m in models}
        gpus, rows = rng.choice(self._widths[models[0]]), {}
        for m in models:
            wide = of_width(self._problem, m, gpus)
            if what < _EVERYWHERE:
                rows[m] = wide
            else:
                row, w = list(self.rows[m]), rng.randrange(len(wide))
                row[w] = wide[w]
                rows[m] = row
        return rows

    def _other_entry(self, model: int, worker: int, rng: random.Random) -> list[int]:
        row, parallel_plans = list(self.rows[model]), self._problem.parallel_plans[model][worker]
        if parallel_plans:
            row[worker] = rng.randrange(len(parallel_plans))
        return row

    def _laid_out(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        """Return (GPUs, seconds on each partition) of the model on each worker."""
        key = (self._kind[model], *row)
        if key not in self._known:
            self._known[key] = self._laid(model, row)
        return self._known[key]

    def _laid(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        found = []
        for parallel_plans, s in zip(self._problem.parallel_plans[model], row, strict=True):
            parallel_plan = parallel_plans[s] if s != NOT_HERE else None
            found.append(
                (parallel_plan.gpus, [parallel_plan.sub_epoch_s(size) for size in self._problem.sizes])
                if parallel_plan
                else (1, [])
            )
        return found
