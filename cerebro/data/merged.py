"""Partitions that several workers read as one: each batch takes rows from all of them, in proportion to their sizes.

Which rows of a partition are in which batch follows from the sizes alone, so each worker reads its own partition and
knows what the others read. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One of several partitions that are read together.

    Attributes:
        rows: of each of them, in their order, at least one.
        number: of the partition at hand.
    """

    rows: tuple[int, ...]
    number: int

    @property
    def num_rows(self) -> int:
        """Of all of them."""
        return sum(self.rows)


def bounds_in_batches(merged: Merged, batch_size: int) -> NDArray[np.int64]:
    """Where each batch begins and ends among the rows of the partition at hand: batch ``t`` has those from ``[t]`` to
    ``[t + 1]``.

    Over all partitions these are ``batch_size`` rows, but for the last batch. Row ``j`` of ``n`` comes at ``(j + 1/2) /
    n`` of the whole, and before the same place in a later partition (the method of Webster, which never takes back what
    it gave). So a batch differs from a partition's due by less than one row for each other partition.

    Returns:
        Shape (batches + 1,).
    """
    order = merged_order(merged.rows)
    begin = sum(merged.rows[: merged.number])
    is_own = (order >= begin) & (order < begin + merged.rows[merged.number])
    before = np.concatenate([[0], np.cumsum(is_own)])
    batches = -(-merged.num_rows // batch_size)
    found: NDArray[np.int64] = before[np.minimum(np.arange(batches + 1) * batch_size, merged.num_rows)]
    return found


def merged_order(rows: Sequence[int]) -> NDArray[np.int64]:
    """Rows of all partitions, counted one partition after another, in the order in which batches take them."""
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in rows])
    return np.argsort(places, kind="stable")
