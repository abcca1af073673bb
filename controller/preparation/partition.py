"""How a data set is cut: in which order rows come, and how many of them each worker gets. Pure.

The place of a row in the order depends on the seed, the split and the row's id alone: not on the file in which it lies,
its format, or the rows beside it (docs/decisions/0053-tables-larger-than-memory.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import xxhash
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""Of rows: those with smaller keys come first; of equal keys, those with smaller ids."""


def row_keys(ids: Sequence[bytes], *, seed: int, split: str) -> Keys:
    """Keys of rows: hashes (XXH3, 64 bits) of their ids as UTF-8 text, seeded so that no two splits are correlated.

    They shuffle the rows (seed paper, section 3.1). A whole number counts as its decimal text, so it does not matter
    whether ids were read as text.
    """
    seeded = xxhash.xxh3_64_intdigest(f"{seed}/{split}".encode())
    return np.fromiter(map(xxhash.xxh3_64_intdigest, ids, repeat(seeded)), np.uint64, len(ids))


def kept(rows: int, fraction: float) -> int:
    """How many of a split's rows are used: the first ones in their order; at least one."""
    return max(1, round(rows * fraction))


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


def cut(start: int, rows: int, counts: Sequence[int]) -> list[tuple[int, slice]]:
    """Whose rows a run of the order has: (number of the worker, the run's rows that are its), in order.

    Args:
        start: rows of the order that come before the run.
        rows: of the run.
        counts: rows of each worker; each gets a contiguous piece of the order, and what is behind the last one nobody.
    """
    found, begin = [], 0
    for worker, count in enumerate(counts):
        first, stop = max(begin, start), min(begin + count, start + rows)
        if first < stop:
            found.append((worker, slice(first - start, stop - start)))
        begin += count
    return found
