"""Hashes of rows, to find equal rows without their content.

A partition with many distinct rows keeps the hashes below a limit, a power of two. Partitions then keep the same part
of all hashes, so equal rows are kept on both sides, and counts scale by the limit.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Array = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

MAX_HASHES = 1 << 15
"""Maximum number of distinct hashes."""
_BITS = 64
_BLOCK_BYTES = 1 << 20
_NARROW_BYTES = 512
"""Rows up to this size are chosen before they are hashed, because hashing costs a call for each row."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_UPPER = np.uint64(0xFFFFFFFF00000000)
_FACTORS = np.array(
    [xxhash.xxh3_64_intdigest(bytes([at])) | 1 for at in range(_NARROW_BYTES // 8)], np.uint64
)
"""An odd number for each position of a word in a row, so that equal words at other positions differ."""


@dataclass(frozen=True, kw_only=True)
class RowHashes:
    """Distinct hashes below ``2**(64 - level)``, ascending, with their number of rows.

    Attributes:
        rows: number of all rows.
        hashes: hashes as bytes of 64-bit integers.
        counts: rows of each hash, as bytes of 32-bit integers.
    """

    rows: int = 0
    level: int = 0
    hashes: bytes = b""
    counts: bytes = b""

    @classmethod
    def of(cls, hashes: Hashes, level: int = 0, *, rows: int | None = None) -> RowHashes:
        """Count the hashes of rows.

        Args:
            level: only hashes of this level are given.
            rows: number of all rows. Default: that many hashes.
        """
        found, counts = np.unique(hashes, return_counts=True)
        return _limited(len(hashes) if rows is None else rows, level, found, counts.astype(np.uint32))

    @classmethod
    def merge(cls, parts: Sequence[RowHashes]) -> RowHashes:
        """Return the hashes of the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        level = max((part.level for part in parts), default=0)
        pairs = [part.at_level(level) for part in parts] or [cls().at_level(0)]
        found, where = np.unique(np.concatenate([pair[0] for pair in pairs]), return_inverse=True)
        counts = np.bincount(
            where.ravel(), weights=np.concatenate([pair[1] for pair in pairs]), minlength=len(found)
        )
        return _limited(sum(part.rows for part in parts), level, found, counts.astype(np.uint32))

    def at_level(self, level: int) -> tuple[Hashes, npt.NDArray[np.uint32]]:
        """Return the hashes and counts of a level that is not below the own one."""
        hashes = np.frombuffer(self.hashes, "<u8")
        num_kept = _num_below(hashes, level)
        return hashes[:num_kept], np.frombuffer(self.counts, "<u4")[:num_kept]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "rows": self.rows,
            "level": self.level,
            "hashes": base64.b64encode(self.hashes).decode(),
            "counts": base64.b64encode(self.counts).decode(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowHashes:
        """Return the hashes of a `to_json` object."""
        return cls(
            rows=value["rows"],
            level=value["level"],
            hashes=base64.b64decode(value["hashes"]),
            counts=base64.b64decode(value["counts"]),
        )


def first_level(rows: int) -> int:
    """Return the first level of a partition: distinct rows then have about `MAX_HASHES`."""
    return max(0, (rows - 1) // MAX_HASHES).bit_length()


def hashes_of(fixed: Sequence[Array], ragged: Sequence[tuple[Array, Array]], level: int = 0) -> Hashes:
    """Return the hashes of the rows that are below the limit of a level.

    Args:
        fixed: contiguous columns, rows first.
        ragged: offsets and contiguous entries of columns.
    """
    columns = [column.reshape(len(column), -1).view(np.uint8) for column in fixed if column.size]
    width = sum(column.shape[1] for column in columns)
    if not ragged and 0 < width <= _NARROW_BYTES:
        return _narrow_hashes(columns, width, level)
    hashed = [_wide_hashes(columns, width)] if columns else []
    for offsets, entries in ragged:
        size = entries.itemsize * math.prod(entries.shape[1:])
        hashed.append(_digests(np.ascontiguousarray(entries), (offsets * size).tolist()))
    joined = hashed[0] if hashed else np.zeros(len(fixed[0]), np.uint64)
    for more in hashed[1:]:
        joined = (joined ^ (joined >> np.uint64(29))) * _MIX + more
    return joined if not level else joined[joined < np.uint64(1 << (_BITS - level))]


def _wide_hashes(columns: Sequence[npt.NDArray[np.uint8]], width: int) -> Hashes:
    size = max(1, _BLOCK_BYTES // width)
    return np.concatenate(
        [
            _row_digests([column[start : start + size] for column in columns], width)
            for start in range(0, len(columns[0]), size)
        ]
    )


def _narrow_hashes(columns: Sequence[npt.NDArray[np.uint8]], width: int, level: int) -> Hashes:
    """Hash only the kept rows. A product of words and positions is the upper half of a hash, which decides."""
    padded = -(-width // 8) * 8
    gap = [np.zeros((len(columns[0]), padded - width), np.uint8)] if padded > width else []
    block = np.concatenate([*columns, *gap], axis=1)
    words = block.view(np.uint64) * _MIX
    words ^= words >> np.uint64(32)
    words *= _FACTORS[: padded // 8]
    upper = np.bitwise_xor.reduce(words, axis=1) * _MIX
    upper = ((upper ^ (upper >> np.uint64(32))) * _MIX) & _UPPER
    if level:
        is_below = upper < np.uint64(1 << (_BITS - level))
        block, upper = block[is_below], upper[is_below]
    hashes: Hashes = upper | (_row_digests([block], padded) & ~_UPPER)
    return hashes


def _row_digests(columns: Sequence[npt.NDArray[np.uint8]], width: int) -> Hashes:
    block = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    return _digests(block, range(0, (len(block) + 1) * width, width))


def _digests(content: Array, ends: Sequence[int]) -> Hashes:
    """Return the digests of consecutive pieces of an array's bytes."""
    view = content.reshape(-1).view(np.uint8).data
    digests = [xxhash.xxh3_64_intdigest(view[begin:end]) for begin, end in itertools.pairwise(ends)]
    return np.array(digests, np.uint64)


def _limited(rows: int, level: int, hashes: Hashes, counts: npt.NDArray[np.uint32]) -> RowHashes:
    while _num_below(hashes, level) > MAX_HASHES:
        level += 1
    num_kept = _num_below(hashes, level)
    return RowHashes(
        rows=rows,
        level=level,
        hashes=hashes[:num_kept].astype("<u8").tobytes(),
        counts=counts[:num_kept].astype("<u4").tobytes(),
    )


def _num_below(hashes: Hashes, level: int) -> int:
    if not level:
        return len(hashes)
    return int(np.searchsorted(hashes, np.uint64(1 << (_BITS - level))))
