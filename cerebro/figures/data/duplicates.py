"""Equal inputs inside a split and in two splits, from hashes of rows. Pure; only NumPy."""

from __future__ import annotations

from itertools import combinations
from collections.abc import Mapping

import numpy as np

from cerebro.contract.base import Contract
from cerebro.data.statistics.row_hashes import RowHashes


class Duplicates(Contract):
    """Rows of a split whose input is also the input of another row.

    Attributes:
        split: split of the rows.
        other: split of the equal rows; the same one for repetitions inside a split.
        rows: number of rows of `split`, estimated if not all rows are compared.
        share: fraction of the rows of `split`.
        is_estimate: True if a sample of the rows is compared.
    """

    split: str
    other: str
    rows: int
    share: float
    is_estimate: bool


def duplicates(splits: Mapping[str, RowHashes]) -> tuple[Duplicates, ...]:
    """Return repetitions inside splits, and rows of a later split that are in an earlier one."""
    found = [_inside(split, hashes) for split, hashes in splits.items()]
    found += [_across(later, earlier, splits) for earlier, later in combinations(splits, 2)]
    return tuple(each for each in found if each.rows)


def _inside(split: str, hashes: RowHashes) -> Duplicates:
    _, counts = hashes.at_level(hashes.level)
    repeated = int(counts.sum(dtype=np.int64)) - len(counts)
    return _scaled(split, split, repeated, int(counts.sum(dtype=np.int64)), hashes)


def _across(split: str, other: str, splits: Mapping[str, RowHashes]) -> Duplicates:
    level = max(splits[split].level, splits[other].level)
    own, counts = splits[split].at_level(level)
    others, _ = splits[other].at_level(level)
    is_common = np.isin(own, others, assume_unique=True)
    rows = int(counts[is_common].sum(dtype=np.int64))
    return _scaled(split, other, rows, int(counts.sum(dtype=np.int64)), splits[split], level=level)


def _scaled(
    split: str, other: str, repeated: int, compared: int, hashes: RowHashes, level: int | None = None
) -> Duplicates:
    share = repeated / compared if compared else 0.0
    is_estimate = bool(hashes.level if level is None else level)
    rows = round(share * hashes.rows) if is_estimate else repeated
    return Duplicates(split=split, other=other, rows=rows, share=share, is_estimate=is_estimate)
