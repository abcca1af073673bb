"""Vector rearrangement: the approximation that the Model Hopper paper compares with (section 5.2).

With p workers, T_max the longest sub-epoch and L_max the largest load of a worker (equations 3 and 4), the makespan is

- L_max, which is optimal, if L_max >= (p^2 + p - 1) * T_max;
- at most L_max + (p - 1) * T_max, hence at most C* + (p - 1) * T_max, always.

The idea of the first is Bárány's and Fiala's (Fiala, Math. Oper. Res. 8, 1983; Sevastianov, 1995). Pad the loads to
L_max by dummy models. Steinitz's lemma gives an order of the models: over each prefix, the loads of any two workers
differ by at most (p - 1) * T_max. Let every worker run that order, worker j from an offset a_j, with
a_{j+1} - a_j >= p * T_max: then a model has left a worker before the next one wants it. Stretch each offset by less
than T_max, so that on every worker one sub-epoch ends exactly at L_max. Move later sub-epochs forward by L_max: all
sub-epochs of a model lie within (p^2 + p - 1) * T_max, so a model does not meet itself.

The second holds for every dense schedule (no worker idles while a model that it could run does): the last sub-epoch's
worker idled only while that sub-epoch's model was elsewhere, so for at most p - 1 sub-epochs.

A greedy order comes first; it is nearly always balanced enough. Otherwise the construction of Grinberg and Sevastyanov
(1980) gives an order that always is. Pure, without search or randomness.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate

from cerebro.errors import InstanceError
from cerebro.scheduling.exact.required_sub_epochs import required_sub_epochs, timed
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule
from research.problems import is_open_shop

Vector = Sequence[float]

_ROUNDING = 1e-9


def rearrange(problem: Problem) -> Schedule:
    """Return the schedule of an open shop by vector rearrangement.

    Raises:
        InstanceError: the problem is not an open shop: the bounds do not hold with replicas, epochs or several GPUs.
    """
    if not is_open_shop(problem):
        raise InstanceError(
            "vector rearrangement schedules plain open shops only (one epoch, one GPU per worker, one holder per "
            "partition): use another policy for this problem"
        )
    wanted = {
        (option.model, option.worker): option
        for option, *_ in (v.options for v in required_sub_epochs(problem))
    }
    times = [[wanted[m, w].seconds for w in range(problem.num_workers)] for m in range(problem.num_models)]
    longest = max(map(max, times))
    padded = _padded(times, longest)
    order = balanced_order(padded, longest)
    if is_surely_optimal(times):
        sub_epochs = [
            sub_epoch for sub_epoch in _wrapped(padded, order, longest) if sub_epoch[0] < len(times)
        ]
    else:
        sub_epochs = _dense(times, [m for m in order if m < len(times)])
    return timed(problem, [wanted[sub_epoch] for sub_epoch in sub_epochs])


def is_surely_optimal(times: Sequence[Vector]) -> bool:
    """True if L_max >= (p^2 + p - 1) * T_max, so that `rearrange` meets L_max.

    Args:
        times: seconds of a sub-epoch, models x workers.
    """
    p = len(times[0])
    return max(map(sum, zip(*times, strict=True))) >= (p * p + p - 1) * max(map(max, times))


def balanced_order(times: Sequence[Vector], longest: float) -> list[int]:
    """Order the rows so that the column sums of any prefix differ by at most (p - 1) * `longest`.

    Args:
        times: rows x p columns, all columns with the same sum, all entries between 0 and `longest`.
    """
    order = _greedy(times)
    bound = (len(times[0]) - 1) * longest * (1 + _ROUNDING)
    if all(max(sums) - min(sums) <= bound for sums in _prefixes(times, order)):
        return order
    return _steinitz(times)


# --- orders -------------------------------------------------------------------------------------


def _padded(times: Sequence[Vector], longest: float) -> list[Vector]:
    """Return the rows, and dummy rows that raise every column sum to the largest, with entries up to `longest`."""
    loads = [sum(column) for column in zip(*times, strict=True)]
    lacking = [max(loads) - load for load in loads]
    rows = list(times)
    while max(lacking) > _ROUNDING * longest:
        rows.append([min(longest, lack) for lack in lacking])
        lacking = [lack - taken for lack, taken in zip(lacking, rows[-1], strict=True)]
    return rows


def _prefixes(times: Sequence[Vector], order: Sequence[int]) -> list[list[float]]:
    """Return the column sums after each row of the order."""
    columns = [list(accumulate(times[row][j] for row in order)) for j in range(len(times[0]))]
    return [list(sums) for sums in zip(*columns, strict=True)]


def _greedy(times: Sequence[Vector]) -> list[int]:
    """Order the rows greedily: take the row that makes the column sums differ least."""
    left, sums, order = set(range(len(times))), [0.0] * len(times[0]), []
    while left:
        best = min(left, key=lambda row: (_spread(sums, times[row]), row))
        left.remove(best)
        order.append(best)
        sums = [a + b for a, b in zip(sums, times[best], strict=True)]
    return order


def _spread(sums: Vector, row: Vector) -> float:
    after = [a + b for a, b in zip(sums, row, strict=True)]
    return max(after) - min(after)


def _steinitz(times: Sequence[Vector]) -> list[int]:
    """Return the order of Grinberg and Sevastyanov, built from its end.

    In the quotient of R^p by the constant vectors, of dimension d = p - 1, the rows sum up to zero. The k remaining
    rows have weights in [0, 1] with sum k - d under which they still do. Reduce the sum of weights by one. At a vertex
    of the feasible region, at most d + 1 weights are fractions, so one weight is 0: its row is the last of the k.
    """
    d = len(times[0]) - 1
    scale = max(map(max, times))
    rows = {n: [*((entry - row[-1]) / scale for entry in row[:-1]), 1.0] for n, row in enumerate(times)}
    weight = {number: max(0.0, 1 - d / len(times)) for number in rows}
    behind: list[int] = []
    while len(rows) > d:
        total = sum(weight.values())
        factor = max(0, len(rows) - 1 - d) / total if total else 0.0
        weight = {number: value * factor for number, value in weight.items()}
        _to_vertex(rows, weight)
        last = min(rows, key=lambda number: weight[number])
        behind.append(last)
        del rows[last], weight[last]
    return [*rows, *reversed(behind)]


def _to_vertex(rows: dict[int, list[float]], weight: dict[int, float]) -> None:
    """Change weights until the rows with fractional weights are independent; keep their weighted sum."""
    dimension = len(next(iter(rows.values())))
    fractions = [n for n, value in weight.items() if _ROUNDING < value < 1 - _ROUNDING]
    while len(fractions) > dimension:
        some = fractions[: dimension + 1]
        direction = _dependence([rows[n] for n in some])
        step = min(
            (1 - weight[n]) / change if change > 0 else weight[n] / -change
            for n, change in zip(some, direction, strict=True)
            if abs(change) > _ROUNDING
        )
        for n, change in zip(some, direction, strict=True):
            weight[n] += step * change
        fractions = [n for n in fractions if _ROUNDING < weight[n] < 1 - _ROUNDING]


def _dependence(vectors: Sequence[Vector]) -> list[float]:
    """Return coefficients, not all zero, for a zero sum of the vectors, which are one more than their dimension."""
    matrix = [list(row) for row in zip(*vectors, strict=True)]
    pivots: list[int] = []
    for column in range(len(vectors)):
        done = len(pivots)
        pivot = max(range(done, len(matrix)), key=lambda r: abs(matrix[r][column]), default=done)
        scale = max((abs(entry) for row in matrix for entry in row), default=1.0)
        if done == len(matrix) or abs(matrix[pivot][column]) <= _ROUNDING * scale:
            found = [0.0] * len(vectors)
            found[column] = 1.0
            for row, at in enumerate(pivots):
                found[at] = -matrix[row][column]
            return found
        matrix[done], matrix[pivot] = matrix[pivot], matrix[done]
        matrix[done] = [entry / matrix[done][column] for entry in matrix[done]]
        for row in range(len(matrix)):
            if row != done and matrix[row][column]:
                by = matrix[row][column]
                matrix[row] = [a - by * b for a, b in zip(matrix[row], matrix[done], strict=True)]
        pivots.append(column)
    raise AssertionError("more vectors than dimensions are dependent")


# --- schedules ----------------------------------------------------------------------------------


def _wrapped(padded: Sequence[Vector], order: Sequence[int], longest: float) -> list[tuple[int, int]]:
    """Return sub-epochs (row, worker) by start: each worker runs the order from its offset, wrapped around at L_max."""
    length, offset = sum(row[0] for row in padded), 0.0
    begun: list[tuple[float, int, int]] = []
    for worker in range(len(padded[0])):
        ends = [0.0, *accumulate(padded[row][worker] for row in order)]
        if worker:
            latest = length - offset - len(padded[0]) * longest
            cut = max(place for place, end in enumerate(ends) if end <= latest + _ROUNDING * length)
            offset = length - ends[cut]
        else:
            cut = len(order)
        for place, row in enumerate(order):
            start = offset + ends[place]
            begun.append((start - length if place >= cut else start, row, worker))
    return [(row, worker) for _, row, worker in sorted(begun)]


def _dense(times: Sequence[Vector], order: Sequence[int]) -> list[tuple[int, int]]:
    """Return sub-epochs (model, worker) by start, without idling while a remaining model of a worker is idle.

    Each worker prefers the models in the order, from a different starting position.
    """
    width = len(times[0])
    left = [list(order[(shift := w * len(order) // width) :]) + list(order[:shift]) for w in range(width)]
    idle_models, idle_workers = set(order), list(range(width))
    running: list[tuple[float, int, int]] = []
    begun, now = [], 0.0
    while any(left):
        for worker in idle_workers[:]:
            model = next((m for m in left[worker] if m in idle_models), None)
            if model is not None:
                left[worker].remove(model)
                idle_models.remove(model)
                idle_workers.remove(worker)
                heapq.heappush(running, (now + times[model][worker], model, worker))
                begun.append((model, worker))
        now = running[0][0]
        while running and running[0][0] <= now:
            _, model, worker = heapq.heappop(running)
            idle_models.add(model)
            idle_workers.append(worker)
    return begun
