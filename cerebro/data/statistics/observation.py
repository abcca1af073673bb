"""Statistics from arrays of prepared rows, and from Arrow columns of metadata.

Numbers of rows and missing values are exact, and so are ranges of fields. Ranges of metadata, means and counts are of
`SAMPLE` to `2 * SAMPLE` rows of a partition, at equal distances, or of all rows if there are fewer: preprocessing must
not become slower.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cerebro.data.fields import Field
from cerebro.data.statistics.columns import MAX_VALUES, ColumnKind, ColumnStatistics, bounded, merge_texts
from cerebro.data.statistics.histogram import Histogram

SAMPLE = 8192
_MAX_ELEMENTS = 4096
"""Maximum number of elements of an array that its mean is of."""
_BLOCK_ELEMENTS = 1 << 18
"""Elements of which a range is computed at a time, which bounds the memory of copies."""
_MAX_TEXT = 80
"""Characters of a text that are kept."""
_MAX_TEXT_BYTES = 1 << 20
"""Sampled texts of a column with more bytes are not counted."""


def sample_step(rows: int) -> int:
    """Return the distance of the sampled rows of a partition."""
    return max(1, rows // SAMPLE)


def observe_field(field: Field, values: npt.NDArray[Any], step: int) -> ColumnStatistics:
    """Return the statistics of a field of fixed shape.

    Args:
        values: rows on the first axis.
        step: distance of the sampled rows; 0 for no sample.
    """
    rows, elements = len(values), math.prod(values.shape[1:])
    kind: ColumnKind = "array" if values.ndim > 1 else "number"
    if not rows or not elements:
        return ColumnStatistics(name=field.name, source="rows", kind="other", type=field.dtype, rows=rows)
    flat = values.reshape(rows, elements)
    missing = infinite = 0
    lows, highs = [], []
    size = max(1, _BLOCK_ELEMENTS // elements)
    for block in (flat[start : start + size] for start in range(0, rows, size)):
        numbers = (
            block.astype(np.float32) if block.dtype == np.float16 else block
        )  # NumPy is slow with float16
        low, high = numbers.min(), numbers.max()
        if numbers.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
            has_nan = np.isnan(numbers).any(axis=1)
            missing += int(has_nan.sum())
            infinite += int((np.isinf(numbers).any(axis=1) & ~has_nan).sum())
            finite = numbers[np.isfinite(numbers)]
            if not finite.size:
                continue
            low, high = finite.min(), finite.max()
        lows.append(float(low))
        highs.append(float(high))
    sample = flat[::step] if step else flat[:0]
    if elements > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            means = sample[:, :: -(-elements // _MAX_ELEMENTS)].mean(axis=1, dtype=np.float64)
    else:
        means = sample[:, 0].astype(np.float64)
    return ColumnStatistics(
        name=field.name,
        source="rows",
        kind=kind,
        type=field.dtype,
        shape=field.shape,
        rows=rows,
        missing=missing,
        infinite=infinite,
        low=min(lows, default=None),
        high=max(highs, default=None),
        **_of_values(means),
    )


def observe_ragged(field: Field, offsets: npt.NDArray[np.int64], step: int) -> ColumnStatistics:
    """Return the statistics of the lengths of a ragged field, from the offsets of its rows."""
    lengths = np.diff(offsets)
    return ColumnStatistics(
        name=field.name,
        source="rows",
        kind="ragged",
        type=field.dtype,
        shape=field.shape,
        rows=len(lengths),
        low=float(lengths.min()) if len(lengths) else None,
        high=float(lengths.max()) if len(lengths) else None,
        **_of_values((lengths[::step] if step else lengths[:0]).astype(np.float64)),
    )


def observe_metadata(batches: Sequence[pa.RecordBatch], name: str) -> ColumnStatistics:
    """Return the statistics of a column of a partition's metadata."""
    parts = [batch.column(name) for batch in batches]
    rows = sum(map(len, parts))
    step = sample_step(rows)
    kind = parts[0].type if parts else pa.null()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    column = ColumnStatistics(
        name=name,
        source="metadata",
        kind="other",
        type=str(kind)[:_MAX_TEXT],
        rows=rows,
        missing=sum(part.null_count for part in parts),
    )
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(column, parts, step)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _texts(column, parts, step)
    return column


def _numbers(column: ColumnStatistics, parts: Sequence[pa.Array], step: int) -> ColumnStatistics:
    sampled: list[npt.NDArray[np.float64]] = []
    missing, infinite = column.missing, 0
    for part in parts:
        numbers = part.dictionary_decode() if pa.types.is_dictionary(part.type) else part
        if pa.types.is_float16(numbers.type):
            numbers = numbers.cast(pa.float32())  # earlier versions of Arrow cannot find NaN in float16
        sample = _sample(numbers, step).cast(pa.float64(), safe=False).drop_null()
        sampled.append(sample.to_numpy(zero_copy_only=False))
        if pa.types.is_floating(numbers.type):
            missing += _count(pc.is_nan(numbers))
            infinite += _count(pc.is_inf(numbers))
    values = np.concatenate(sampled)
    finite = values[np.isfinite(values)]
    return ColumnStatistics(
        name=column.name,
        source="metadata",
        kind="number",
        type=column.type,
        rows=column.rows,
        missing=missing,
        infinite=infinite,
        low=float(finite.min()) if len(finite) else None,
        high=float(finite.max()) if len(finite) else None,
        **_of_values(finite),
    )


def _texts(column: ColumnStatistics, parts: Sequence[pa.Array], step: int) -> ColumnStatistics:
    counted = 0
    texts: Mapping[str, int] | None = {}
    for part in parts:
        sample = _sample(part, step)
        if pa.types.is_dictionary(sample.type):
            sample = sample.dictionary_decode()
        sample = sample.drop_null()
        counted += len(sample)
        if texts is not None:
            texts = merge_texts([texts, _counts(sample)])
    return ColumnStatistics(
        name=column.name,
        source="metadata",
        kind="text",
        type=column.type,
        rows=column.rows,
        missing=column.missing,
        counted=counted,
        texts=texts,
    )


def _counts(sample: pa.Array) -> Mapping[str, int] | None:
    """Return the counts of texts; None for too many or too long ones."""
    if sample.nbytes > _MAX_TEXT_BYTES:
        return None
    found = pc.value_counts(sample)
    if len(found) > MAX_VALUES:
        return None
    counts: Counter[str] = Counter()
    for entry in found.to_pylist():
        counts[_shortened(entry["values"])] += entry["counts"]
    return bounded(counts)


def _sample(values: pa.Array, step: int) -> pa.Array:
    return values if step == 1 else values.take(pa.array(np.arange(0, len(values), step)))


def _count(flags: pa.Array) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _of_values(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    if not len(values):
        return {}
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(finite.mean()) if len(finite) else 0.0
        deviations = float(np.square(finite - mean).sum())
    return {
        "counted": len(finite),
        "mean": mean if math.isfinite(mean) else 0.0,
        "deviations": deviations if math.isfinite(deviations) else 0.0,
        "histogram": Histogram.of(finite),
    }
