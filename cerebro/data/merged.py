"""Batches from partitions that several workers read as one: each batch has rows of all, in proportion to their sizes.

`PartitionLoader` uses it for gangs. The sizes alone determine the rows of each batch, so each worker reads only its own
partition and still knows the number of the others' rows. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One of several partitions that workers read together.

    Attributes:
        rows: rows of each partition, at least one.
        number: index of this partition.
    """

    rows: tuple[int, ...]
    number: int

    @property
    def num_rows(self) -> int:
        """Rows of all partitions."""
        return sum(self.rows)


def bounds_in_batches(merged: Merged, batch_size: int) -> NDArray[np.int64]:
    """Return where batches begin and end among this partition's rows.

    Batch `t` has its rows from `[t]` to `[t + 1]`. Over all partitions a batch has `batch_size` rows, except the last.
    Row `j` of `n` is at position `(j + 1/2) / n`; ties go to the earlier partition (Webster's method, which is
    monotone). So a batch deviates from a partition's proportional share by less than one row per other partition.

    Returns:
        Shape (batches + 1,).
    """
    order = merged_order(merged.rows)
    begin = sum(merged.rows[: merged.number])
    is_in_partition = (order >= begin) & (order < begin + merged.rows[merged.number])
    num_earlier = np.concatenate([[0], np.cumsum(is_in_partition)])
    batches = -(-merged.num_rows // batch_size)
    bounds: NDArray[np.int64] = num_earlier[np.minimum(np.arange(batches + 1) * batch_size, merged.num_rows)]
    return bounds


def merged_order(rows: Sequence[int]) -> NDArray[np.int64]:
    """Return the rows of all partitions in batch order, numbered partition by partition."""
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in rows])
    return np.argsort(places, kind="stable")
