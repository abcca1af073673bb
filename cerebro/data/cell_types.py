"""Infer the types of CSV columns without changing a cell's meaning.

A column has the first type of `TYPES` that keeps the notation of every cell: ``1`` is an integer, and ``0001``, ``+1``
and ``NA`` are text; ``1.1`` is a float, and ``1.10`` and ``1e5`` are text. An empty cell is null. This module does not
read files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

TYPES: Sequence[pa.DataType] = (
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("us"),
)

_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.(?:0|\d*[1-9]))?(?:[eE]([+-]?)\d+)?")
_MOST_WHOLE = 2**53
"""float64 cannot hold every larger integer."""


def type_of(name: str, text: pa.StringArray) -> pa.DataType:
    """Infer a column's type; `null` if all cells are empty. Ids are integers or text."""
    if not pc.any(pc.not_equal(text, "")).as_py():
        return pa.null()
    kinds = TYPES[:1] if name == "id" else TYPES
    return next((kind for kind in kinds if as_type(text, kind) is not None), pa.string())


def as_type(text: pa.StringArray, kind: pa.DataType) -> pa.Array | None:
    """Convert cells to a type, empty cells to null. Return `None` if a cell's notation would be lost."""
    if pa.types.is_string(kind):
        return text
    present = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    if pa.types.is_null(kind):
        return pa.nulls(len(text)) if present.null_count == len(text) else None
    try:
        values = present.cast(kind)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_floating(kind) and not _are_plain(present, values):
        return None
    written = present
    if pa.types.is_timestamp(kind):
        written = pc.replace_substring(present, "T", " ", max_replacements=1)
    differs = pc.not_equal(values.cast(pa.string()), written)
    others = pc.unique(present.filter(pc.fill_null(differs, False)))
    return values if all(_is_written_so(cell, kind) for cell in others.to_pylist()) else None


def _are_plain(text: pa.StringArray, values: pa.Array) -> bool:
    """True if no cell is a word, such as nan, or a negative zero."""
    words = pc.or_(pc.invert(pc.is_finite(values)), pc.equal(text, "-0"))
    return not pc.any(words).as_py()


def first_other(text: pa.StringArray, kind: pa.DataType) -> int:
    """Return the position of the first cell that `as_type` refuses. At least one cell must be refused."""
    start, stop = 0, len(text)
    while stop - start > 1:
        middle = (start + stop) // 2
        start, stop = (start, middle) if as_type(text[start:middle], kind) is None else (middle, stop)
    return start


def joined(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the common type of a column whose splits have different types."""
    found = {kind for kind in kinds if not pa.types.is_null(kind)}
    if len(found) <= 1:
        return next(iter(found), pa.null())
    return pa.float64() if found == {pa.int64(), pa.float64()} else pa.string()


def _is_written_so(cell: str, kind: pa.DataType) -> bool:
    """True if the cell is a common notation of a value that Arrow writes differently."""
    if pa.types.is_boolean(kind):
        return cell in ("True", "False", "TRUE", "FALSE")
    found = _FLOAT.fullmatch(cell) if pa.types.is_floating(kind) else None
    if found is None:
        return False
    _, fraction, sign = found.groups()
    if fraction is None and sign is None:
        return abs(int(cell)) <= _MOST_WHOLE
    # 1e5 may be part of a hash. Programs write 100000.0, 1e+05 or 1.0E5.
    number = float(cell)
    return bool(fraction or sign) and math.isfinite(number) and Decimal(repr(number)) == Decimal(cell)
