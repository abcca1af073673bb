"""Rungs and brackets of successive halving, for ASHA, Hyperband and the client's checks. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort


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
