"""Statistics of one column, of a shard, a partition or a split.

A column is a column of the metadata or a field of the prepared rows. Each row has one value: a number, a text, the mean
of an array's elements, or the number of entries of a ragged array.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cerebro.data.statistics.histogram import Histogram

MAX_VALUES = 128
"""Maximum number of distinct texts. Columns with more have no counts."""

ColumnKind: TypeAlias = Literal["number", "text", "array", "ragged", "other"]
"""Kind of a row's value. Columns of kind "other", such as lists, only count missing values."""
ColumnSource: TypeAlias = Literal["metadata", "rows"]


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """Statistics of one column.

    Attributes:
        type: type in words, such as ``float32``.
        shape: shape of an array; a variable axis is None.
        rows: rows, including missing values.
        missing: rows with null or NaN.
        infinite: rows with an infinite number.
        low, high: range of the finite numbers; of an array's elements; None without numbers.
        counted: number of finite values that `mean`, `deviations` and the counts are of. All, or a sample of rows.
        mean: mean of the values.
        deviations: sum of the squared deviations from the mean.
        histogram: counts of numbers.
        texts: counts of texts; None for more than `MAX_VALUES` distinct ones.
    """

    name: str
    source: ColumnSource
    kind: ColumnKind
    type: str
    shape: tuple[int | None, ...] = ()
    rows: int = 0
    missing: int = 0
    infinite: int = 0
    low: float | None = None
    high: float | None = None
    counted: int = 0
    mean: float = 0.0
    deviations: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)
    texts: Mapping[str, int] | None = field(default_factory=dict)

    @property
    def deviation(self) -> float:
        """Standard deviation of the values."""
        return math.sqrt(self.deviations / self.counted) if self.counted else 0.0

    @property
    def distinct(self) -> int | None:
        """Number of distinct counted values; None for too many."""
        if self.kind == "text":
            return None if self.texts is None else len(self.texts)
        return len(self.histogram.edges) if self.histogram.is_exact else None

    @classmethod
    def merge(cls, parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
        """Return the statistics of the rows of all parts, at least one.

        A column of nulls takes the kind of the others. Values of different kinds are dropped.
        """
        with_values = [part for part in parts if part.kind != "other" or part.rows > part.missing] or parts
        first = with_values[0]
        is_one_kind = all(part.kind == first.kind for part in with_values)
        values = [part for part in with_values if is_one_kind]
        counted = sum(part.counted for part in values)
        mean = _finite(sum(part.mean * part.counted for part in values) / counted) if counted else 0.0
        gaps = [part.mean - mean for part in values]
        return cls(
            name=first.name,
            source=first.source,
            kind=first.kind if is_one_kind else "other",
            type=first.type if all(part.type == first.type for part in with_values) else "mixed",
            shape=first.shape if all(part.shape == first.shape for part in with_values) else (),
            rows=sum(part.rows for part in parts),
            missing=sum(part.missing for part in parts),
            infinite=sum(part.infinite for part in parts),
            low=min((part.low for part in values if part.low is not None), default=None),
            high=max((part.high for part in values if part.high is not None), default=None),
            counted=counted,
            mean=mean,
            deviations=_finite(
                sum(
                    part.deviations + part.counted * gap * gap for part, gap in zip(values, gaps, strict=True)
                )
            ),
            histogram=Histogram.merge([part.histogram for part in values]),
            texts=merge_texts([part.texts for part in values]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**vars(self), "histogram": vars(self.histogram)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ColumnStatistics:
        """Return the statistics of a `to_json` object."""
        counts = value["histogram"]
        histogram = Histogram(
            edges=tuple(map(float, counts["edges"])),
            counts=tuple(map(int, counts["counts"])),
            exponent=counts["exponent"],
            is_exact=counts["is_exact"],
        )
        return cls(**{**value, "shape": tuple(value["shape"]), "histogram": histogram})


def _finite(value: float) -> float:
    """Return 0.0 for a sum of very large numbers that overflowed."""
    return value if math.isfinite(value) else 0.0


def bounded(texts: Mapping[str, int]) -> Mapping[str, int] | None:
    """Return counts of texts in order; None for more than `MAX_VALUES`."""
    return dict(sorted(texts.items())) if len(texts) <= MAX_VALUES else None


def merge_texts(parts: Sequence[Mapping[str, int] | None]) -> Mapping[str, int] | None:
    """Return the sums of counts of texts; None for more than `MAX_VALUES`."""
    sums: Counter[str] = Counter()
    for part in parts:
        if part is None:
            return None
        sums.update(part)
    return bounded(sums)
