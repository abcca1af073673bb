"""Columns of a data set as table rows with small bars, for the tab Data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.figures.data.summary import Bin, Column, DataSummary, SplitColumn

BAR_UNITS, HEIGHT_PX = 8, 24
"""Width of a bar with its gap, and height of the tallest one, in units of the drawing."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A drawing of shares.

    Attributes:
        heights: height of each bar.
        label: the shares in words.
    """

    heights: tuple[float, ...]
    label: str

    @property
    def width(self) -> int:
        """Width of the drawing."""
        return BAR_UNITS * len(self.heights)


@dataclass(frozen=True, kw_only=True)
class SplitCells:
    """Cells of a column in one split.

    Attributes:
        bars: distribution; None without counted values.
        partitions: distributions of the first partitions.
    """

    column: SplitColumn
    bars: Bars | None
    partitions: tuple[Bars, ...]


@dataclass(frozen=True, kw_only=True)
class ColumnRows:
    """A column with a row for each split."""

    column: Column
    splits: tuple[SplitCells, ...]


def column_rows(summary: DataSummary, most: int) -> tuple[ColumnRows, ...]:
    """Return at most `most` columns, those with warnings first."""
    warned = {warning.column for warning in summary.warnings if warning.column}
    chosen = sorted(summary.columns, key=lambda column: column.name not in warned)[:most]
    return tuple(
        ColumnRows(
            column=column,
            splits=tuple(_cells(column, split) for split in column.splits),
        )
        for column in chosen
    )


def _cells(column: Column, split: SplitColumn) -> SplitCells:
    about = f"{column.name} in {split.split}"
    shares = [each.share for each in split.bins]
    distribution = _bars(about, split.bins, shares, max(shares, default=0.0))
    top = max((share for part in split.partitions for share in part), default=0.0)
    partitions = [
        _bars(f"{about}, partition {number}", split.bins, part, top)
        for number, part in enumerate(split.partitions)
    ]
    return SplitCells(
        column=split,
        bars=distribution,
        partitions=tuple(part for part in partitions if part is not None),
    )


def _bars(about: str, bins: Sequence[Bin], shares: Sequence[float], top: float) -> Bars | None:
    if not top:
        return None
    parts = "; ".join(f"{each.label}: {share:.1%}" for each, share in zip(bins, shares, strict=True))
    heights = tuple(round(HEIGHT_PX * share / top, 2) for share in shares)
    return Bars(heights=heights, label=f"{about}: {parts}")
