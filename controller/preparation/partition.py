"""The order of a data set's rows, and each worker's number of rows. Pure.

A row's place depends only on the seed, the split and its id: not on its file, the format, or other rows
(docs/decisions/0053-tables-larger-than-memory.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import xxhash
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""Keys of rows. Smaller keys come first; equal keys are ordered by id."""


def row_keys(ids: Sequence[bytes], *, seed: int, split: str) -> Keys:
    """Return the rows' keys: XXH3 hashes (64 bits) of their ids as UTF-8 text.

    Seeded so that no two splits are correlated. They shuffle the rows (seed paper, section 3.1). Integers
    count as decimal text, so reading ids as text changes nothing.
    """
    seeded = xxhash.xxh3_64_intdigest(f"{seed}/{split}".encode())
    return np.fromiter(map(xxhash.xxh3_64_intdigest, ids, repeat(seeded)), np.uint64, len(ids))


def rows_in_use(rows: int, fraction: float) -> int:
    """Return the number of a split's rows in use: the first ones in order; at least one."""
    return max(1, round(rows * fraction))


def shares(rows: int, weights: Sequence[float]) -> list[int]:
    """Return each worker's number of rows, proportional to its weight; they sum to `rows`.

    By largest remainder. With at least as many rows as workers, each worker gets one.
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
    """Return (worker number, its slice of the run's rows), in order.

    Args:
        start: rows before the run.
        rows: rows of the run.
        counts: rows of each worker, as contiguous pieces; later rows are unused.
    """
    found, begin = [], 0
    for worker, count in enumerate(counts):
        first, stop = max(begin, start), min(begin + count, start + rows)
        if first < stop:
            found.append((worker, slice(first - start, stop - start)))
        begin += count
    return found
