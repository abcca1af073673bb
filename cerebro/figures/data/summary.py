"""Summary of a data set: columns per split and partition, duplicates and warnings.

Page, client and command line show it. The models import no NumPy.
"""

from __future__ import annotations

from typing import Literal

from cerebro.contract.base import Contract


class Bin(Contract):
    """Part of a column's values: its label, and its share of the values of a split or partition."""

    label: str
    share: float


class SplitColumn(Contract):
    """A column in one split.

    Attributes:
        missing, infinite: rows with null or NaN, and with an infinite number.
        low, high, mean, deviation: range, mean and standard deviation of numbers; None without numbers.
        distinct: number of distinct values; None for too many.
        frequent: the most frequent values with their shares; () if they are too many to count.
        bins: distribution.
        partitions: for each of the first partitions, the share of each bin.
        omitted: number of further partitions.
    """

    split: str
    rows: int
    missing: int
    infinite: int
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    distinct: int | None = None
    frequent: tuple[Bin, ...] = ()
    bins: tuple[Bin, ...] = ()
    partitions: tuple[tuple[float, ...], ...] = ()
    omitted: int = 0


class Column(Contract):
    """A column of the metadata or a field of the rows, with its splits.

    Attributes:
        source: "metadata" or "rows".
        kind: kind of a row's value: a number, a text, the mean of an array, or the length of a ragged array.
        type: data type in words.
        shape: shape of arrays in words, such as ``(any, 300)``; an empty text for single values.
    """

    name: str
    source: str
    kind: str
    type: str
    shape: str = ""
    splits: tuple[SplitColumn, ...] = ()


class DataWarning(Contract):
    """A finding that may make a training worse.

    Attributes:
        column: column, or an empty text for rows.
        text: the finding and the remedy, in two sentences.
    """

    kind: Literal["partitions", "duplicates", "constant", "missing"]
    column: str = ""
    text: str


class DataSummary(Contract):
    """Columns and warnings of a data set.

    Attributes:
        incomplete: number of partitions without statistics, made by an earlier version.
        omitted: number of columns without statistics.
    """

    columns: tuple[Column, ...] = ()
    warnings: tuple[DataWarning, ...] = ()
    incomplete: int = 0
    omitted: int = 0

    def sentence(self) -> str:
        """Return one line about the warnings; an empty text without any, or only of constant columns."""
        found = [each for each in self.warnings if each.kind != "constant"]
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        return f"Data warning{more}: {found[0].text}" if found else ""
