"""Infer the types of CSV columns without changing a cell's meaning.

A column has the first type of `TYPES` that keeps the notation of every cell: ``1`` is an integer, and ``0001``, ``+1``
and ``NA`` are text; ``1.1`` is a float, and ``1e5`` is text. ``1.10`` is a float only if all cells have two decimals.
An empty cell is null. Spaces around a number, date or truth value do not count. `text_stream` passes the cells; this
module does not read files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from cerebro.contract.records import ColumnType

TYPES: Sequence[pa.DataType] = (
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "UTC"),
)

_FLOAT = re.compile(r"-?(?:0|[1-9]\d*|(?=\.\d))(\.(?:0|\d*[1-9])?)?(?:[eE]([+-]?)\d+)?")
_FEW = 64
"""Number of cells that rule out most types."""
_FIXED = re.compile(r"-?\d+\.(\d+)(e[+-]\d\d+)?")
_MAX_WHOLE = 2**53
"""float64 cannot hold every larger integer."""


def type_of(name: str, text: pa.StringArray) -> pa.DataType:
    """Infer a column's type; `null` if all cells are empty. Ids are integers or text."""
    if not pc.any(pc.not_equal(text, "")).as_py():
        return pa.null()
    kinds = TYPES[:1] if name == "id" else TYPES
    # Arrow converts all cells even if the first one fails, so rule out most types by a few cells.
    is_id = name == "id"
    likely = [kind for kind in kinds if as_type(text[:_FEW], kind, is_id=is_id) is not None]
    return next((kind for kind in likely if as_type(text, kind, is_id=is_id) is not None), pa.string())


def as_type(
    text: pa.StringArray, kind: pa.DataType, *, is_decided: bool = False, is_id: bool = False
) -> pa.Array | None:
    """Convert cells to a type, empty cells to null. Return `None` if a cell's notation would be lost.

    Args:
        is_decided: True for rows after the sample. A float column then takes any finite decimal number, except whole
            numbers that float64 cannot hold.
        is_id: True for ids, which keep their spaces.
    """
    if pa.types.is_string(kind):
        return text
    trimmed = text if is_id else _trimmed(text)
    if trimmed is None:
        return None
    text = trimmed
    present = _non_empty(text)
    if present.null_count == len(text):
        return pa.nulls(len(text), kind)
    try:
        values = present.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # nothing casts to null or to a list
    if pa.types.is_temporal(kind) and pc.any(pc.starts_with(present, "0000-")).as_py():
        return None  # Python's years begin with 1
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(values)).as_py():
        return None  # a word, such as nan
    if is_decided and pa.types.is_floating(kind):
        return None if _is_rounded(present, values) else values
    doubtful = _doubtful(text, kind)
    cells, written = present.take(doubtful), values.take(doubtful).cast(pa.string())
    differs = pc.not_equal(written, cells)
    cells, written = cells.filter(differs), written.filter(differs)
    unusual = pc.unique(cells.filter(pc.not_equal(written, _as_arrow_writes(cells, kind))))
    if all(_is_written_so(cell, kind) for cell in unusual.to_pylist()):
        return values
    return values if pa.types.is_floating(kind) and _has_one_format(text) else None


def _is_rounded(text: pa.StringArray, values: pa.Array) -> bool:
    """True if float64 cannot hold a whole number among the cells."""
    large = text.filter(pc.greater_equal(pc.abs(values), _MAX_WHOLE))
    digits = large.filter(pc.match_substring_regex(large, r"^[+-]?\d+$"))
    return any(int(cell) != int(float(cell)) for cell in digits.to_pylist())


def _trimmed(text: pa.StringArray) -> pa.StringArray | None:
    """Remove spaces around cells. Return `None` if a cell has only spaces, because it is not empty."""
    offsets, content = _parts(text)
    if not (content[offsets[0] : offsets[-1]] == _SPACE).any():
        return text
    trimmed = pc.ascii_trim(text, " ")
    is_blank = pc.and_(pc.equal(trimmed, ""), pc.not_equal(text, ""))
    return None if pc.any(is_blank).as_py() else trimmed


def _as_arrow_writes(cells: pa.StringArray, kind: pa.DataType) -> pa.StringArray:
    """Rewrite common notations as Arrow's, so that few cells are compared in Python."""
    if pa.types.is_floating(kind):
        return pc.replace_substring_regex(cells, r"[eE]([+-])0?(\d+)$", r"e\1\2")
    if pa.types.is_timestamp(kind):
        cells = pc.replace_substring(cells, "T", " ", max_replacements=1)
        return pc.replace_substring_regex(cells, r"\+00(:?00)?$", "Z") if kind.tz else cells
    return cells


def _has_one_format(text: pa.StringArray) -> bool:
    """True if all numbers have the same count of decimals, as printed by ``%.2f`` or ``%.18e``."""
    offsets, content = _parts(text)
    filled = np.flatnonzero(np.diff(offsets))
    starts, ends = offsets[filled], offsets[filled + 1]
    match = _FIXED.fullmatch(text[int(filled[0])].as_py())
    if match is None:
        return False
    decimals, letter = len(match[1]), "e" if match[2] else "f"
    if letter == "f":
        begins = starts + (content[starts] == _MINUS)
        points = ends - 1 - decimals
        is_whole_plain = (points == begins + 1) | ((points > begins) & (content[begins] != _ZERO))
        if not (is_whole_plain & (content[np.maximum(points, 0)] == _POINT)).all():
            return False
        if not _IS_DECIMAL[content[offsets[0] : offsets[-1]]].all():
            return False
        filled = filled[ends - begins > _SURE_DIGITS]
    cells = pc.unique(text.take(filled)).to_pylist()
    return all(f"{float(cell):.{decimals}{letter}}" == cell for cell in cells)


def _parts(text: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of texts."""
    _, offsets, content = text.buffers()
    edges = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    return edges, np.frombuffer(content, np.uint8) if content else np.zeros(0, np.uint8)


def _non_empty(text: pa.StringArray) -> pa.StringArray:
    """Mark empty texts as null without a copy."""
    offsets, _ = _parts(text)
    lengths = np.diff(offsets)
    if lengths.all():
        return text
    valid = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), text.buffers()[2], valid)


def _doubtful(text: pa.StringArray, kind: pa.DataType) -> NDArray[np.int64]:
    """Positions of cells that need a closer look than their first and last byte.

    Converting every number back to text takes most of the time of reading. An integer that begins with 1 to 9 has no
    other notation. Nor has a short decimal number that begins with 1 to 9, or with 0 and a point, and does not end in 0
    or a point.
    """
    offsets, content = _parts(text)
    lengths = np.diff(offsets)
    longer = np.flatnonzero(lengths > 1)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.flatnonzero(lengths)
    begins = offsets[longer]
    first = content[begins]
    if pa.types.is_integer(kind):
        return longer[~_is_from_1_to_9(first)]
    used = content[offsets[0] : offsets[-1]]
    if not _IS_DECIMAL[used].all():  # an exponent, or another word
        return np.flatnonzero(lengths)
    signed = first == _MINUS
    first = np.where(signed, content[begins + 1], first)
    second = np.take(content, begins + 1 + signed, mode="clip")
    last = content[offsets[longer + 1] - 1]
    is_sure = (
        _is_from_1_to_9(first) | ((first == _ZERO) & (second == _POINT) & (lengths[longer] > 1 + signed))
    ) & ((last != _ZERO) & (last != _POINT) & (lengths[longer] <= _SURE_DIGITS))
    unsure: NDArray[np.int64] = longer[~is_sure]
    return unsure


def _is_from_1_to_9(each: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return each - np.uint8(ord("1")) <= 8


_MINUS, _POINT, _ZERO, _SPACE = ord("-"), ord("."), ord("0"), ord(" ")
_SURE_DIGITS = 15
"""float64 holds each decimal number with as many digits."""
_ALL_DIGITS = 17
"""Digits that distinguish each float64 from all others, as `%.17g` prints them."""
_IS_DECIMAL = np.zeros(256, bool)
_IS_DECIMAL[[*range(_ZERO, _ZERO + 10), _MINUS, _POINT]] = True


def first_other(
    text: pa.StringArray, kind: pa.DataType, *, is_decided: bool = False, is_id: bool = False
) -> int:
    """Return the position of the first cell that `as_type` refuses after the cells before it. There must be one."""
    start, stop = 0, len(text)
    while stop - start > 1:
        middle = (start + stop) // 2
        is_refused = as_type(text[:middle], kind, is_decided=is_decided, is_id=is_id) is None
        start, stop = (start, middle) if is_refused else (middle, stop)
    return start


def type_to_name(kind: pa.DataType, cell: str) -> ColumnType:
    """Return the type for a locator that makes a column of `kind` take a cell."""
    wider = [kind, pa.float64()] if pa.types.is_integer(kind) else [kind]
    for alias in get_args(ColumnType):
        if pa.type_for_alias(alias) in wider and _is_readable(cell, pa.type_for_alias(alias)):
            name: ColumnType = alias
            return name
    return "string"


def _is_readable(cell: str, kind: pa.DataType) -> bool:
    """True if Arrow reads a cell of a CSV column of this type."""
    if cell in pa.csv.ConvertOptions().null_values:
        return True
    text = pa.array([cell.strip(" ")])
    try:
        values = text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return not (pa.types.is_floating(kind) and _is_rounded(text, values))


def joined(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the common type of a column whose splits have different types."""
    distinct = {kind for kind in kinds if not pa.types.is_null(kind)}
    if len(distinct) <= 1:
        return next(iter(distinct), pa.null())
    return pa.float64() if distinct == {pa.int64(), pa.float64()} else pa.string()


def _is_written_so(cell: str, kind: pa.DataType) -> bool:
    """True if the cell is a common notation of a value that Arrow writes differently."""
    if pa.types.is_boolean(kind):
        return cell in ("True", "False", "TRUE", "FALSE")
    match = _FLOAT.fullmatch(cell) if pa.types.is_floating(kind) else None
    if match is None:
        return False
    fraction, sign = match.groups()
    if fraction is None and sign is None:
        return abs(int(cell)) <= _MAX_WHOLE
    # 1e5 may be part of a hash. Programs write 100000.0, 1e+05 or 1.0E5.
    number = float(cell)
    if not (fraction or sign) or not math.isfinite(number):
        return False
    if Decimal(repr(number)) == Decimal(cell):
        return True
    digits = sum(map(str.isdigit, cell.lower().partition("e")[0].lstrip("-0.")))
    return f"{number:.{max(_ALL_DIGITS, digits)}g}" == cell.lower()
