"""Equal inputs inside a split and in two splits, from hashes of rows. Pure; only NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

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
    compared = int(counts.sum(dtype=np.int64))
    share = (compared - len(counts)) / compared if compared else 0.0
    return _scaled(split, split, share, hashes, hashes.level)


def _across(split: str, other: str, splits: Mapping[str, RowHashes]) -> Duplicates:
    level = max(splits[split].level, splits[other].level)
    hashes, counts = splits[split].at_level(level)
    other_hashes, _ = splits[other].at_level(level)
    common = counts[np.isin(hashes, other_hashes, assume_unique=True)]
    compared = int(counts.sum(dtype=np.int64))
    share = int(common.sum(dtype=np.int64)) / compared if compared else 0.0
    return _scaled(split, other, share, splits[split], level)


def _scaled(split: str, other: str, share: float, hashes: RowHashes, level: int) -> Duplicates:
    return Duplicates(
        split=split, other=other, rows=round(share * hashes.rows), share=share, is_estimate=level > 0
    )
