"""Rungs and brackets of successive halving, for ASHA, Hyperband and the client's checks. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from cerebro.search.pareto import Point, spread_order
from cerebro.search.procedure import Facts
from cerebro.search.searched import SearchedModel


def rung_epochs(first: int, eta: int, epochs: int) -> tuple[int, ...]:
    """Return `first`, `first * eta`, ... below `epochs`, then `epochs`.

    >>> rung_epochs(1, 3, 27)
    (1, 3, 9, 27)
    """
    found = []
    level = first
    while level < epochs:
        found.append(level)
        level *= eta
    return (*found, epochs)


def bracket_sizes(rungs: int, eta: int) -> tuple[int, ...]:
    """Return the number of models in each Hyperband bracket.

    The first bracket has all `rungs`, each later one a rung less. n of algorithm 1, line 3 in Li et al., JMLR
    18 (2018), with R = eta^s_max: brackets cost about the same.

    >>> bracket_sizes(5, 3)
    (81, 34, 15, 8, 5)
    """
    return tuple(-(-rungs * eta**s // (s + 1)) for s in range(rungs - 1, -1, -1))


def best_first(models: Sequence[SearchedModel], level: int, facts: Facts) -> list[SearchedModel]:
    """Sort models with a value after epoch `level`, best first.

    With several objectives or constraints, by non-dominated rank; in a front, models that cover it come first.
    """
    if facts.criteria:
        models = sorted(models, key=lambda model: model.number)
        points = [facts.criteria.point(model.metrics[level]) for model in models]
        return [models[place] for place in spread_order(points)]
    return sorted(models, key=lambda model: (-facts.score(model.values[level]), model.number))


class Rung:
    """Ranking of models at a rung, best first; ties by the number of the model."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._ranked: list[tuple[float, int]] = []
        self._keys: dict[int, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, number: int) -> bool:
        return number in self._keys

    def put(self, number: int, score: float) -> None:
        """Set a model's score; larger is better. Replaces its earlier score."""
        if number in self._keys:
            del self._ranked[bisect_left(self._ranked, self._keys[number])]
        self._keys[number] = key = (-score, number)
        insort(self._ranked, key)

    def rank(self, number: int) -> int:
        """Return the model's rank; 0 is the best."""
        return bisect_left(self._ranked, self._keys[number])

    def best(self, count: int) -> list[int]:
        """Return the numbers of the `count` best models."""
        return [number for _, number in self._ranked[:count]]


class ParetoRung:
    """Ranking of models with several objectives or constraints, as in MO-ASHA; see `spread_order`."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._points: dict[int, Point] = {}
        self._ranked: list[int] | None = None

    def __len__(self) -> int:
        return len(self._points)

    def put(self, number: int, point: Point) -> None:
        """Set a model's point. Replaces its earlier one."""
        self._points[number], self._ranked = point, None

    def rank(self, number: int) -> int:
        """Return the model's rank; 0 is the best."""
        return self._order().index(number)

    def best(self, count: int) -> list[int]:
        """Return the numbers of the `count` best models."""
        return self._order()[:count] if count else []

    def _order(self) -> list[int]:
        if self._ranked is None:
            numbers = sorted(self._points)
            points = [self._points[number] for number in numbers]
            self._ranked = [numbers[place] for place in spread_order(points)]
        return self._ranked
