"""Late acceptance over orders of units, where strategies or replicas are to be chosen, too.

Dispatch by priorities (`local_search`) finds good widths and a good beginning, but serves whoever is there. A tight
packing needs GPUs that wait for a unit which takes more of them. Here a schedule is a list of units, each of which
starts when its model and enough GPUs behind the units before it are free. Some list gives a shortest schedule
(`exact.visits.starts` says why), and a list is decoded in a tenth of the time of a dispatch.

Must not look at a clock, nor know of bounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from cerebro.scheduling.allotment import NOT_HERE, of_width, widths
from cerebro.scheduling.decoder import Start
from cerebro.scheduling.local_search import Candidate
from cerebro.scheduling.problem import Problem

_HISTORY = 20
_MAX_STALLED_STEPS = 8000
_STEPS = 8
"""Decodings for each item that the search yields."""
_SOURCE = "local search over orders"


class _Item(NamedTuple):
    """A unit in a list."""

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
    current = best = order.makespan(order.items, math.inf)
    history, stalled, step = [current] * _HISTORY, 0, 0
    while order.items and stalled < _MAX_STALLED_STEPS:
        is_better = False
        for _ in range(_STEPS):
            step, stalled = step + 1, stalled + 1
            at = step % _HISTORY
            items, rows = order.neighbour(rng)
            before = order.put(rows)
            makespan = order.makespan(items, max(current, history[at]))
            if makespan < math.inf:
                current, order.items = makespan, items
                if current < best:
                    best, stalled, is_better = current, 0, True
                    found = order.candidate()
            else:
                order.put(before)
            history[at] = current
        yield found if is_better else None


class _Orders:
    """A list of units and the rows of an allotment.

    Attributes:
        items: the list; units of a model stand in the order of their epochs.
        rows: the allotment; no entry is `NOT_HERE` where the model fits.
    """

    def __init__(self, problem: Problem, start: Candidate) -> None:
        self._problem = problem
        self._is_long = problem.epochs > 1
        self._twins = problem.twins()
        self._kind = {m: number for number, alike in enumerate(self._twins) for m in alike}
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
        self._ways = [self._laid_out(m, row) for m, row in enumerate(self.rows)]

    def put(self, rows: dict[int, list[int]]) -> dict[int, list[int]]:
        """Changes rows; what they were."""
        before = {m: self.rows[m] for m in rows}
        for m, row in rows.items():
            self.rows[m] = row
            self._ways[m] = self._laid_out(m, row)
        return before

    def neighbour(self, rng: random.Random) -> tuple[list[_Item], dict[int, list[int]]]:
        """Another list, and rows to change: a unit elsewhere in the list, or on another holder; two units swapped; a
        model, or two, with other strategies."""
        items, rows, what = self.items, {}, rng.random()
        if what > 0.7:
            for m in self._some(rng):
                rows[m] = self._row(m, rng)
            if rng.random() < 0.7:
                return items, rows
        items = items[:]
        i, j = rng.randrange(len(items)), rng.randrange(len(items))
        if 0.45 < what <= 0.7:
            items[i], items[j] = items[j], items[i]
            return items, rows
        item = items.pop(i)
        if len(self._problem.holders[item.partition]) > 1 and rng.random() < 0.5:
            item = item._replace(worker=rng.choice(self._problem.places(item.model, item.partition)))
        items.insert(j, item)
        return items, rows

    def makespan(self, items: list[_Item], cutoff: float, starts: list[Start] | None = None) -> float:
        """Seconds until the last unit ends; infinite if that exceeds `cutoff`, or if epochs are out of order. The units
        are added to `starts`."""
        problem, ways, longest = self._problem, self._ways, 0.0
        model_free = list(problem.model_ready)
        gpu_free = [list(ready) for ready in problem.gpu_ready]
        epochs = [0] * problem.num_models
        for m, p, w, epoch in items:
            if self._is_long:
                if epoch < epochs[m]:
                    return math.inf
                epochs[m] = epoch
            need, seconds = ways[m][w]
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

    def _row(self, model: int, rng: random.Random) -> list[int]:
        ways = self._problem.strategies[model]
        if rng.random() < 0.7:
            return of_width(self._problem, model, rng.choice(widths(self._problem, model)))
        row, w = list(self.rows[model]), rng.randrange(len(ways))
        if ways[w]:
            row[w] = rng.randrange(len(ways[w]))
        return row

    def _laid_out(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        """(GPUs, seconds on each partition) of the model on each worker."""
        key = (self._kind[model], *row)
        if key not in self._known:
            self._known[key] = self._laid(model, row)
        return self._known[key]

    def _laid(self, model: int, row: list[int]) -> list[tuple[int, list[float]]]:
        found = []
        for ways, s in zip(self._problem.strategies[model], row, strict=True):
            way = ways[s] if s != NOT_HERE else None
            found.append((way.gpus, [way.unit_s(size) for size in self._problem.sizes]) if way else (1, []))
        return found
