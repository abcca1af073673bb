"""Summary and warnings of a data set from the statistics of its partitions. Pure.

MOP assumes that partitions are random parts of a split. A warning names each column that differs more than chance
explains, at a family-wise error of `LEVEL` for all columns and splits (Holm). The effect must reach `MIN_EFFECT`,
because with many rows every tiny difference is significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cerebro.data.fields import shape_text
from cerebro.data.statistics.columns import ColumnStatistics, merge_texts
from cerebro.data.statistics.data import DataStatistics, merge_all
from cerebro.data.statistics.histogram import Histogram
from cerebro.figures.data.duplicates import Duplicates, duplicates
from cerebro.figures.data.homogeneity import Difference, compare_partitions
from cerebro.figures.data.summary import Bin, Column, DataSummary, DataWarning, SplitColumn
from cerebro.figures.ranking.statistics import holm

LEVEL = 0.01
MIN_EFFECT = 0.1
"""Smallest effect (Cohen's w) that is worth a warning."""
MIN_REPEATED = 0.01
"""Smallest share of repeated rows inside a split that is worth a warning."""
MAX_BARS = 12
"""Maximum number of bins that are shown and compared."""
MAX_PARTITIONS = 16
"""Maximum number of partitions whose distributions are shown. All are compared."""
_CERTAIN = 5.0
"""Missing values to expect in a split before none at all are remarkable: by chance in 1 of 150 splits."""
_MAX_FREQUENT = 20
_EXACT_INTEGERS = 1 << 53

Splits = Mapping[str, Sequence[DataStatistics]]
_Key = tuple[str, str]


def summarize(splits: Splits, incomplete: int = 0) -> DataSummary:
    """Return the summary of a data set.

    Args:
        splits: split -> statistics of its partitions.
        incomplete: number of partitions without statistics.
    """
    merged = {split: merge_all(parts) for split, parts in splits.items() if parts}
    keys = list(dict.fromkeys((c.source, c.name) for total in merged.values() for c in total.columns))
    found = {split: _by_key(total) for split, total in merged.items()}
    parts = {split: [_by_key(part) for part in splits[split]] for split in merged}
    columns: list[Column] = []
    differences: list[tuple[Column, str, Difference]] = []
    warnings: list[DataWarning] = []
    for key in keys:
        by_split = {split: columns_of[key] for split, columns_of in found.items() if key in columns_of}
        bins = _Bins(list(by_split.values()))
        of_splits = []
        for split, merged_column in by_split.items():
            counts = [
                bins.counts(part[key]) if key in part else [0] * len(bins.labels) for part in parts[split]
            ]
            of_splits.append(_split_column(split, merged_column, bins, counts))
            difference = compare_partitions(counts) if len(bins.labels) > 1 else None
            if difference is not None:
                differences.append((bins.column, split, difference))
        columns.append(bins.column.model_copy(update={"splits": tuple(of_splits)}))
        warnings += _missing_warnings(bins.column, by_split) + _constant_warnings(bins.column, by_split)
    warnings = [
        *_duplicate_warnings(duplicates({split: total.hashes for split, total in merged.items()})),
        *_partition_warnings(differences),
        *warnings,
    ]
    return DataSummary(
        columns=tuple(columns),
        warnings=tuple(warnings),
        incomplete=incomplete,
        omitted=max((total.omitted for total in merged.values()), default=0),
    )


class _Bins:
    """The common bins of a column over all splits."""

    def __init__(self, by_split: Sequence[ColumnStatistics]) -> None:
        merged_column = ColumnStatistics.merge(by_split)
        self.column = Column(
            name=merged_column.name,
            source=merged_column.source,
            kind=merged_column.kind,
            type=merged_column.type,
            shape=shape_text(merged_column.shape) if merged_column.shape else "",
        )
        self._histogram = (
            merged_column.histogram.coarser(MAX_BARS) if merged_column.kind != "text" else Histogram()
        )
        texts = merge_texts([each.texts for each in by_split]) or {}
        frequent = sorted(texts, key=lambda text: (-texts[text], text))
        self._texts = tuple(frequent[: MAX_BARS - 1] if len(frequent) > MAX_BARS else frequent)
        self.labels = self._texts + (("other",) if len(frequent) > MAX_BARS else ())
        if merged_column.kind != "text":
            self.labels = tuple(_bin_label(edge, self._histogram) for edge in self._histogram.edges)

    def counts(self, column: ColumnStatistics) -> list[int]:
        """Return the values of each bin."""
        if column.kind != self.column.kind or not self.labels:
            return [0] * len(self.labels)
        if column.kind != "text":
            return column.histogram.counts_in(self._histogram)
        texts = column.texts or {}
        counts = [texts.get(text, 0) for text in self._texts]
        return counts if len(counts) == len(self.labels) else [*counts, sum(texts.values()) - sum(counts)]


def _split_column(
    split: str, merged_column: ColumnStatistics, bins: _Bins, counts: Sequence[Sequence[int]]
) -> SplitColumn:
    sums = [sum(each) for each in zip(*counts, strict=True)]
    has_numbers = merged_column.kind not in ("text", "other") and merged_column.counted > 0
    return SplitColumn(
        split=split,
        rows=merged_column.rows,
        missing=merged_column.missing,
        infinite=merged_column.infinite,
        low=merged_column.low,
        high=merged_column.high,
        mean=merged_column.mean if has_numbers else None,
        deviation=merged_column.deviation if has_numbers else None,
        distinct=merged_column.distinct if merged_column.counted else None,
        frequent=_frequent(merged_column),
        bins=tuple(
            Bin(label=label, share=share) for label, share in zip(bins.labels, _shares(sums), strict=True)
        ),
        partitions=tuple(
            tuple(round(share, 4) for share in _shares(each)) for each in counts[:MAX_PARTITIONS]
        ),
        omitted=max(0, len(counts) - MAX_PARTITIONS),
    )


def _frequent(merged_column: ColumnStatistics) -> tuple[Bin, ...]:
    if merged_column.kind == "text":
        values = [(text, count) for text, count in (merged_column.texts or {}).items()]
    elif merged_column.histogram.is_exact:
        histogram = merged_column.histogram
        values = [
            (_number(edge), count) for edge, count in zip(histogram.edges, histogram.counts, strict=True)
        ]
    else:
        return ()
    values.sort(key=lambda value: -value[1])
    total = sum(count for _, count in values)
    return tuple(Bin(label=label, share=count / total) for label, count in values[:_MAX_FREQUENT])


def _partition_warnings(differences: Sequence[tuple[Column, str, Difference]]) -> list[DataWarning]:
    if not differences:
        return []
    rejected = holm(np.array([each.p_value for _, _, each in differences]), LEVEL)
    chosen = [
        each for each, is_rejected in zip(differences, rejected, strict=True)
        if is_rejected and each[2].effect >= MIN_EFFECT
    ]  # fmt: skip
    chosen.sort(key=lambda each: -each[2].effect)
    return [
        DataWarning(
            kind="partitions",
            column=column.name,
            text=(
                f"the partitions of {split} differ in {_named(column)} more than chance explains "
                f"(effect {difference.effect:.2g}). Models see them one after another: check rows that failed, and "
                "the row ids or the group of run_etl(), which decide the partition"
            ),
        )
        for column, split, difference in chosen
    ]


def _duplicate_warnings(found: Sequence[Duplicates]) -> list[DataWarning]:
    warnings = []
    for each in sorted(found, key=lambda one: one.split == one.other):
        if "predict" in (each.split, each.other):
            continue
        about = "about " if each.is_estimate else ""
        rows = (
            f"{about}{each.rows:,} {'row' if each.rows == 1 else 'rows'} of {each.split} ({each.share:.2%})"
        )
        verb = "has" if each.rows == 1 else "have"
        if each.split != each.other:
            text = f"{rows} {verb} the input of a row of {each.other}. Remove them, or scores are too good"
        elif each.share >= MIN_REPEATED:
            text = f"{rows} {verb} the input of an earlier row. Remove them if they are copies"
        else:
            continue
        warnings.append(DataWarning(kind="duplicates", text=text))
    return warnings


def _missing_warnings(column: Column, by_split: Mapping[str, ColumnStatistics]) -> list[DataWarning]:
    by_split = {split: merged_column for split, merged_column in by_split.items() if split != "predict"}
    lacking = [split for split, merged_column in by_split.items() if merged_column.missing]
    if len(lacking) != 1 or len(by_split) < 2:
        return []
    (split,) = lacking
    missing, rows = by_split[split].missing, by_split[split].rows
    other_rows = max(each.rows for other, each in by_split.items() if other != split)
    if other_rows * missing / rows < _CERTAIN:
        return []
    return [
        DataWarning(
            kind="missing",
            column=column.name,
            text=(
                f"only {split} has missing values in {_named(column)} ({missing:,} of {rows:,} rows). Check how the "
                "splits were made"
            ),
        )
    ]


def _constant_warnings(column: Column, by_split: Mapping[str, ColumnStatistics]) -> list[DataWarning]:
    rows, counted = sum(w.rows for w in by_split.values()), sum(w.counted for w in by_split.values())
    missing = sum(w.missing for w in by_split.values())
    if rows < 2 or column.kind == "ragged":
        return []
    if missing == rows:
        return [
            DataWarning(
                kind="constant", column=column.name, text=f"{_named(column)} has no values. Fill or remove it"
            )
        ]
    if column.kind == "other" or not counted or missing or any(w.infinite for w in by_split.values()):
        return []
    if column.source == "metadata" and counted < rows:
        return []  # a sample, whose range is not the range of all rows
    if column.kind == "text":
        texts = merge_texts([w.texts for w in by_split.values()])
        value = next(iter(texts)) if texts and len(texts) == 1 else None
    else:
        bounds = {bound for w in by_split.values() for bound in (w.low, w.high) if bound is not None}
        value = _number(bounds.pop()) if len(bounds) == 1 else None
    if value is None:
        return []
    text = f"{_named(column)} has the value {value!r} in all rows. Remove it if models read it"
    return [DataWarning(kind="constant", column=column.name, text=text)]


def _named(column: Column) -> str:
    return f"{'column' if column.source == 'metadata' else 'field'} {column.name!r}"


def _by_key(part: DataStatistics) -> dict[_Key, ColumnStatistics]:
    return {(column.source, column.name): column for column in part.columns}


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _bin_label(edge: float, histogram: Histogram) -> str:
    if histogram.is_exact:
        return _number(edge)
    return f"{_number(edge, 6)} to {_number(edge + math.ldexp(1.0, histogram.exponent), 6)}"


def _number(value: float, digits: int = 0) -> str:
    """Return a number as text: integers exactly, others with `digits`, by default as many as distinguish them."""
    if value.is_integer() and abs(value) < _EXACT_INTEGERS:
        return str(int(value))
    if digits:
        return f"{value:.{digits}g}"
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return repr(float(str(single)) if float(single) == value else value)
