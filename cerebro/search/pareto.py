"""Order of models with several objectives and constraints: non-dominated ranks. Pure.

A point *dominates* another one if it is at least as good in every objective and better in one. Points that no other
point dominates are the first *front*; without them, the next front follows (Deb et al., *NSGA-II*, 2002).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cerebro.contract.runs import Constraint, FitRequest, Mode


class Point(NamedTuple):
    """A model's values as numbers to minimize.

    Attributes:
        losses: the objectives with their signs; infinite if unknown.
        violations: distance to each constraint; more than 0 if it is not met.
    """

    losses: tuple[float, ...]
    violations: tuple[float, ...] = ()

    @property
    def is_known(self) -> bool:
        """True if all values are known."""
        return all(map(math.isfinite, (*self.losses, *self.violations)))

    @property
    def is_feasible(self) -> bool:
        """True if all constraints are met."""
        return all(each <= 0 for each in self.violations)


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """Objectives and constraints of a run.

    Attributes:
        objectives: name -> ``"min"`` or ``"max"``; empty for a run with one objective and no constraint.
    """

    objectives: Mapping[str, Mode]
    constraints: Sequence[Constraint] = ()

    @classmethod
    def of(cls, request: FitRequest) -> Criteria:
        """Return the criteria of a fit."""
        if not request.is_multi_objective:
            return NO_CRITERIA
        return cls(
            objectives=request.objectives or {request.metric: request.mode}, constraints=request.constraints
        )

    def __bool__(self) -> bool:
        return bool(self.objectives)

    def point(self, values: Mapping[str, float]) -> Point:
        """Return the point of a model with these metrics and measures."""
        losses = (_loss(values.get(name), mode) for name, mode in self.objectives.items())
        return Point(tuple(losses), tuple(_violation(each, values) for each in self.constraints))

    @property
    def worst(self) -> Point:
        """Point of a model without any value."""
        return self.point({})


NO_CRITERIA = Criteria(objectives={})
"""Criteria of a run whose models are compared by one metric."""


def _loss(value: float | None, mode: Mode) -> float:
    if value is None or not math.isfinite(value):
        return math.inf
    return value if mode == "min" else -value


def _violation(constraint: Constraint, values: Mapping[str, float]) -> float:
    value = values.get(constraint.name)
    if value is None or not math.isfinite(value):
        return math.inf
    distance = value - constraint.limit if constraint.is_upper else constraint.limit - value
    # A strict constraint is not met at its limit.
    return distance if constraint.is_met(value) else max(distance, sys.float_info.min)


def dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if `first` is nowhere worse than `second`, and better in one objective.

    >>> dominates((1, 2), (1, 3)), dominates((1, 3), (2, 2))
    (True, False)
    """
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def fronts(losses: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the number of each point's front, from 1.

    Efficient non-dominated sort with binary search (Zhang et al., IEEE TEVC 19, 2015): a point in lexicographic order
    can only be dominated by earlier ones, and if a front does not dominate it, no later front does.

    >>> fronts([(1, 4), (2, 2), (3, 3), (4, 1)])
    [1, 1, 2, 1]
    """
    members: list[list[tuple[float, ...]]] = []
    found = [0] * len(losses)
    for index in sorted(range(len(losses)), key=losses.__getitem__):
        point = losses[index]
        low, high = 0, len(members)
        while low < high:
            middle = (low + high) // 2
            if _is_dominated(point, members[middle]):
                low = middle + 1
            else:
                high = middle
        if low == len(members):
            members.append([])
        members[low].append(point)
        found[index] = low + 1
    return found


def _is_dominated(point: tuple[float, ...], members: Sequence[tuple[float, ...]]) -> bool:
    if len(point) <= 2:  # the newest member has the smallest second objective
        return dominates(members[-1], point)
    return any(dominates(each, point) for each in reversed(members))


def ranks(points: Sequence[Point]) -> list[int]:
    """Return the rank of each point: the fronts of the feasible points from 1, then the others' fronts."""
    feasible = [index for index, point in enumerate(points) if point.is_feasible]
    infeasible = [index for index, point in enumerate(points) if not point.is_feasible]
    found, last = [0] * len(points), 0
    for group in (feasible, infeasible):
        numbers = fronts([points[index].losses for index in group])
        for index, number in zip(group, numbers, strict=True):
            found[index] = last + number
        last += max(numbers, default=0)
    return found


def order(points: Sequence[Point]) -> list[int]:
    """Return the positions of the points, best first: by rank, then by the objectives in their order."""
    by_rank = ranks(points)
    return sorted(range(len(points)), key=lambda index: (by_rank[index], points[index].losses, index))


def spread_order(points: Sequence[Point]) -> list[int]:
    """Return the positions of the points, best first, such that the first points of a front cover it.

    The selection of MO-ASHA (Schmucker et al., *Multi-objective Asynchronous Successive Halving*, 2021): by rank,
    then by an epsilon-net. The first point of a front has the best first objective; each next one is the farthest from
    all before it.
    """
    by_rank: dict[int, list[int]] = {}
    for index, rank in enumerate(ranks(points)):
        by_rank.setdefault(rank, []).append(index)
    scales = _scales([point.losses for point in points])
    found: list[int] = []
    for rank in sorted(by_rank):
        found += _farthest_first(points, by_rank[rank], scales)
    return found


def _scales(losses: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Return the smallest finite value and the range of each objective."""
    found = []
    for axis in zip(*losses, strict=True):
        finite = [value for value in axis if math.isfinite(value)] or [0.0]
        found.append((min(finite), (max(finite) - min(finite)) or 1.0))
    return found


def _farthest_first(
    points: Sequence[Point], front: Sequence[int], scales: Sequence[tuple[float, float]]
) -> list[int]:
    places = {
        index: tuple(
            min((loss - low) / size, 2.0)  # 2 for an unknown value
            for loss, (low, size) in zip(points[index].losses, scales, strict=True)
        )
        for index in front
    }
    first = min(front, key=lambda index: (points[index].losses, index))
    distances = {index: math.dist(places[index], places[first]) for index in front if index != first}
    found = [first]
    while distances:
        farthest = max(distances, key=lambda index: (distances[index], -index))
        del distances[farthest]
        found.append(farthest)
        for index, distance in distances.items():
            distances[index] = min(distance, math.dist(places[index], places[farthest]))
    return found


def hypervolume(losses: Sequence[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """Return the volume that points dominate, up to a reference point.

    Two objectives: the area under the sorted points. More: the sum of the volumes that each point adds to the following
    ones (While, Bradstreet and Barone, *A Fast Way of Calculating Exact Hypervolumes*, IEEE TEVC 16, 2012).

    >>> hypervolume([(1, 2), (2, 1)], (3, 3)), hypervolume([(1, 1, 2), (2, 2, 1)], (3, 3, 3))
    (3.0, 5.0)
    """
    if len(reference) == 2:
        return _area(losses, (reference[0], reference[1]))
    points = sorted({tuple(each) for each in losses})
    # A point in lexicographic order can only be dominated by earlier ones.
    front: list[tuple[float, ...]] = []
    for point in points:
        if not any(dominates(each, point) for each in front):
            front.append(point)
    return math.fsum(
        hypervolume_gain(point, front[number:], reference) for number, point in enumerate(front, start=1)
    )


def hypervolume_gain(
    point: tuple[float, ...], others: Sequence[tuple[float, ...]], reference: tuple[float, ...]
) -> float:
    """Return the volume that a point dominates and no other point does."""
    if any(value >= limit for value, limit in zip(point, reference, strict=True)):
        return 0.0
    box = math.prod(limit - value for value, limit in zip(point, reference, strict=True))
    overlaps = [tuple(map(max, point, each)) for each in others]
    return float(box - hypervolume(overlaps, reference))


def _area(losses: Sequence[tuple[float, ...]], reference: tuple[float, float]) -> float:
    area, height = 0.0, reference[1]
    for x, y in sorted(losses):
        if x < reference[0] and y < height:
            area += (reference[0] - x) * (height - y)
            height = y
    return area
