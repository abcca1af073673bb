"""How a data set is cut: which rows each worker gets. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence


def sample(rows: int, *, fraction: float, seed: int, split: str) -> list[int]:
    """Row numbers of a split in shuffled order, cut to `fraction` of them but at least one.

    Shuffled once by seed (seed paper, section 3.1); each split has its own generator, so that no two are correlated.
    """
    order = list(range(rows))
    random.Random(f"{seed}/{split}").shuffle(order)
    return order[: max(1, round(rows * fraction))]


def shares(rows: int, weights: Sequence[float]) -> list[int]:
    """Rows for each worker in proportion to its weight; they sum to `rows`.

    Largest remainder; when there are at least as many rows as workers nobody gets none.
    """
    total = sum(weights)
    exact = [rows * weight / total for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: rows - sum(counts)]:
        counts[i] += 1
    if rows >= len(weights):
        for i in range(len(counts)):
            if counts[i] == 0:
                counts[counts.index(max(counts))] -= 1
                counts[i] = 1
    return counts


def cut(order: Sequence[int], workers: Mapping[str, float]) -> dict[str, list[int]]:
    """Row numbers per worker: contiguous pieces of `order`, in proportion to the workers' weights."""
    pieces: dict[str, list[int]] = {}
    start = 0
    for worker, count in zip(workers, shares(len(order), list(workers.values())), strict=True):
        pieces[worker] = list(order[start : start + count])
        start += count
    return pieces
