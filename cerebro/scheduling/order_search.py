"""Late acceptance over orders of sub-epochs, where strategies or replicas are to be chosen, too.

Dispatch by priorities (`local_search`) finds good widths and a good beginning, but serves whoever is there. A tight
packing needs GPUs that wait for a sub-epoch which takes more of them. Here a schedule is a list of sub-epochs, each of
which starts when its model and enough GPUs behind the sub-epochs before it are free. Some list gives a shortest
schedule (`exact.visits.starts` says why), and a list is decoded in a tenth of the time of a dispatch.

Where the search stalls, all models whose own sub-epochs take nearly as long as the best schedule get faster strategies
at once, and it goes on from there (iterated local search, Lourenco et al., 2003). One by one they would not: of several
models that are longest, each alone makes the schedule no shorter. Where there is no choice of strategies a stretch of
the list is shuffled instead.

Must not look at a clock, nor know of bounds.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cerebro.scheduling.allotment import NOT_HERE, has_choice, of_width, widths
from cerebro.scheduling.decoder import Start
from cerebro.scheduling.local_search import Candidate
from cerebro.scheduling.problem import Problem

_HISTORY = 20
_MAX_STALLED_STEPS, _MAX_STALLED_PER_SUB_EPOCH = 1000, 20
"""Decodings without improvement, the fewer of both, after which the search begins anew (`search_orders`)."""
_MAX_KICKS = 8
"""Such new beginnings, one after the other, none of which leads to a better schedule, after which the search ends."""
_WIDENED = (0.93, 0.99)
"""Of the best makespan: as long as the sub-epochs of a widened model take at most; drawn anew each time."""
_BACK = 0.7
"""Share of the new beginnings that begin from the best schedule; the others go on from where the search is."""
_STEPS = 8
"""Decodings for each item that the search yields."""
_OTHER_ROWS, _ALIKE, _SWAPS = 0.3, 0.5, 0.7
"""Of the moves: strategies of whole models; then swaps of sub-epochs of one model or worker; then swaps of any
sub-epochs. The rest moves a sub-epoch."""
_EVERYWHERE, _EACH = 0.3, 0.6
"""Of the changes of whole models: as wide everywhere; then on a worker. The rest changes entries."""
_OTHER_WAY = 0.35
"""Of the sub-epochs that are moved: run by another strategy from then on."""
_SOURCE = "local search over orders"


class _Item(NamedTuple):
    """A sub-epoch in a list."""

    model: int
    partition: int
    worker: int
    epoch: int


def search_orders(problem: Problem, start: Candidate, rng: random.Random) -> Iterator[Candidate | None]:
    """Better schedules than that one, as long as some are found.

    Args:
        problem: any.
        start: a schedule of it.
        rng: seeded by the caller.

    Yields:
        What was found, several decodings each; `None` where nothing was better.
    """
    order = _Orders(problem, start)
    best, kicks = order.makespan(order.items, math.inf), 0
    kept, is_fixed = order.kept(), not has_choice(problem)
    while order.items and kicks <= _MAX_KICKS:
        for found in _late_acceptance(order, rng):
            if found is not None and found.makespan < best:
                best, kicks, kept = found.makespan, 0, order.kept()
                yield found
            else:
                yield None
        kicks += 1
        if rng.random() < _BACK:
            order.go_back(kept)
        if is_fixed:
            order.mix(rng)
        else:
            order.widen(best * rng.uniform(*_WIDENED), rng)


def _late_acceptance(order: _Orders, rng: random.Random) -> Iterator[Candidate | None]:
    """Until it stalls; the schedules that are better than all since it began."""
    current = best = order.makespan(order.items, math.inf)
    history, stalled, step = [current] * _HISTORY, 0, 0
    limit = min(_MAX_STALLED_STEPS, _MAX_STALLED_PER_SUB_EPOCH * len(order.items))
    while stalled < limit:
        is_better = False
        for _ in range(_STEPS):
            step, stalled = step + 1, stalled + 1
            at = step % _HISTORY
            items, rows = order.neighbour(rng)
            before = order.put(rows)
            makespan = order.makespan(items, max(current, history[at]))
            if makespan < math.inf:
                current, order.items = makespan, items
            else:
                order.put(before)
            history[at] = current
            if current < best:
                best, stalled, is_better = current, 0, True
                break  # what comes next may be worse, and is accepted: this one would be lost
        yield order.candidate() if is_better else None


class _Orders:
    """A list of sub-epochs and the rows of an allotment.

    Attributes:
        items: the list; sub-epochs of a model stand in the order of their epochs.
        rows: the allotment; no entry is `NOT_HERE` where the model fits.
    """

    def __init__(self, problem: Problem, start: Candidate) -> None:
        self._problem = problem
        self._is_long = problem.epochs > 1
        self._twins = problem.twins()
        self._kind = {m: number for number, alike in enumerate(self._twins) for m in alike}
        self._widths = [widths(problem, m) for m in range(problem.num_models)]
        self._known: dict[tuple[int, ...], list[tuple[int, list[float]]]] = {}
        visits = [[1 - (mask >> p & 1) for p in range(problem.num_partitions)] for mask in problem.left]
        self.items: list[_Item] = []
        for _, m, p, w in sorted(start.starts):
            visits[m][p] += 1
            self.items.append(_Item(m, p, w, visits[m][p]))
        self.rows: list[list[int]] = []
        for m, row in enumerate(start.allotment):
            gpus = [problem.strategies[m][w][s].gpus for w, s in enumerate(row) if s != NOT_HERE]
            wide = of_width(problem, m, max(gpus, default=1))
            self.rows.append([other if s == NOT_HERE else s for s, other in zip(row, wide, strict=True)])
        self._parallel_plans = [self._laid_out(m, row) for m, row in enumerate(self.rows)]

    def put(self, rows: dict[int, list[int]]) -> dict[int, list[int]]:
        """Changes rows; what they were."""
        before = {m: self.rows[m] for m in rows}
        for m, row in rows.items():
            self.rows[m] = row
            self._parallel_plans[m] = self._laid_out(m, row)
        return before

    def kept(self) -> tuple[list[_Item], list[list[int]]]:
        """The list and the rows as they are now, for `go_back`."""
        return self.items[:], [list(row) for row in self.rows]

    def go_back(self, kept: tuple[list[_Item], list[list[int]]]) -> None:
        """To what `kept` gave."""
        self.items = kept[0][:]
        self.put({m: list(row) for m, row in enumerate(kept[1])})

    def mix(self, rng: random.Random) -> None:
        """Shuffles a stretch of the list; sub-epochs of a model keep the order of their epochs."""
        first, last = sorted(rng.sample(range(len(self.items) + 1), 2))
        stretch = rng.sample(self.items[first:last], last - first)
        by_epoch = sorted(stretch, key=lambda item: item.epoch)
        mine = {
            m: iter([item for item in by_epoch if item.model == m]) for m in {item.model for item in stretch}
        }
        self.items[first:last] = [next(mine[item.model]) for item in stretch]

    def widen(self, limit: float, rng: random.Random) -> None:
        """Faster strategies, anywhere, for each model whose own sub-epochs take longer than `limit` seconds."""
        visits: list[dict[int, list[int]]] = [defaultdict(list) for _ in self.rows]
        for m, p, w, _ in self.items:
            visits[m][w].append(p)
        for m, mine in enumerate(visits):
            self.put({m: self._widened(m, mine, limit, rng)})

    def _widened(
        self, model: int, visits: Mapping[int, Sequence[int]], limit: float, rng: random.Random
    ) -> list[int]:
        row, ready = list(self.rows[model]), self._problem.model_ready[model]
        while visits:
            laid = self._laid_out(model, row)
            if ready + sum(laid[w][1][p] for w, mine in visits.items() for p in mine) <= limit:
                break
            steps = [(w, s) for w in visits for s in self._faster(model, w, row[w])]
            if not steps:
                break
            w, s = rng.choice(steps)
            row[w] = s
        return row

    def _faster(self, model: int, worker: int, strategy: int) -> list[int]:
        size, parallel_plans = self._problem.mean_size, self._problem.strategies[model][worker]
        seconds = parallel_plans[strategy].sub_epoch_s(size)
        return [
            s for s, parallel_plan in enumerate(parallel_plans) if parallel_plan.sub_epoch_s(size) < seconds
        ]

    def neighbour(self, rng: random.Random) -> tuple[list[_Item], dict[int, list[int]]]:
        """Another list, and rows to change: a model, or some, with other strategies; two sub-epochs swapped, any or of
        one model or worker; or a sub-epoch elsewhere in the list, perhaps on another holder or by another strategy."""
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
        if rnd() < _OTHER_WAY:
            return items, {item.model: self._other_entry(item.model, item.worker, rng)}
        return items, {}

    def makespan(self, items: list[_Item], cutoff: float, starts: list[Start] | None = None) -> float:
        """Seconds until the last sub-epoch ends; infinite if that exceeds `cutoff`, or if epochs are out of order. The
        sub-epochs are added to `starts`."""
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
        """The list as a schedule."""
        starts: list[Start] = []
        makespan = self.makespan(self.items, math.inf, starts)
        return Candidate(makespan, starts, [list(row) for row in self.rows], _SOURCE)

    def _some(self, rng: random.Random) -> list[int]:
        """A model; or two, of which one may give what the other takes; or some that are alike: if they are the longest,
        it helps nobody to shorten one."""
        what, twins = rng.random(), rng.choice(self._twins)
        if what < 0.4:
            return rng.sample(twins, rng.randint(1, len(twins)))
        return rng.sample(range(len(self.rows)), min(len(self.rows), 1 if what < 0.8 else 2))

    def _other_rows(self, rng: random.Random) -> dict[int, list[int]]:
        """Models that have other strategies: all as wide as one another, everywhere or on a worker; or each its own."""
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
        row, parallel_plans = list(self.rows[model]), self._problem.strategies[model][worker]
        if parallel_plans:
            row[worker] = rng.randrange(len(parallel_plans))
        return row

    def _laid_out(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        """(GPUs, seconds on each partition) of the model on each worker."""
        key = (self._kind[model], *row)
        if key not in self._known:
            self._known[key] = self._laid(model, row)
        return self._known[key]

    def _laid(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        found = []
        for parallel_plans, s in zip(self._problem.strategies[model], row, strict=True):
            parallel_plan = parallel_plans[s] if s != NOT_HERE else None
            found.append(
                (parallel_plan.gpus, [parallel_plan.sub_epoch_s(size) for size in self._problem.sizes])
                if parallel_plan
                else (1, [])
            )
        return found
