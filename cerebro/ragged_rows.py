"""Arrays of different lengths: a row's marked array, and many rows as two arrays.

Row functions return `ragged(array)`; user code gets a `Ragged` in batches, from `cerebro.data`. The layout is that of
Arrow lists and torch's jagged tensors: the entries of all rows in sequence, and offsets of the rows. NumPy arrays and
torch tensors are handled alike. This module does not import torch, because some processes lack it; a caller with a
tensor has imported it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from cerebro.errors import DataError

_INDICES = (
    "a number, a slice, or a list, array or tensor with one axis, of whole numbers or of one boolean for each row; "
    "the rows' entries are in `values`"
)


class RaggedRow:
    """One row's array, marked by `ragged`.

    Attributes:
        value: the array.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"ragged({self.value!r})"


def ragged(array: Any) -> RaggedRow:
    """Mark an array of a row function, whose first axis may differ in length between rows, 0 included.

    All rows must mark it. Its dtype and other axes are the same in all rows, also with length 0:
    ``np.zeros(0, np.int64)``, ``np.zeros((0, 300), np.float32)``. In batches it becomes a `Ragged`::

        def row_preprocessor(self, row, mode, object_dir):
            return image, ragged(np.asarray(tokens, np.int64))

    Args:
        array: an array or a tensor with at least one axis.
    """
    return RaggedRow(array)


# A dataclass, because FSDP and DDP search dataclasses for tensors in a module's inputs and outputs.
@dataclass(eq=False, repr=False)
class Ragged:
    """Arrays of different lengths, one for each row: NumPy arrays or torch tensors.

    Entry-wise computations, such as embeddings, work on `values` at once::

        vectors = tokens.with_values(embedding(tokens.values))

    Args:
        values: the entries of all rows in sequence: shape (entries, *rest).
        offsets: whole numbers of shape (rows + 1,): row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        DataError: the offsets do not fit the values.
    """

    values: Any
    offsets: Any

    def __post_init__(self) -> None:
        ends = _whole_numbers(self.offsets)
        if is_tensor(self.values):
            offsets = self.offsets if is_tensor(self.offsets) else ends
            self.offsets = _torch().as_tensor(offsets, dtype=_torch().int64, device=self.values.device)
        else:
            self.values, self.offsets = np.asarray(self.values), ends
        if not self.values.ndim:
            raise DataError("the values of a Ragged are one number: they need an axis for the rows' entries")
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise DataError(
                f"a Ragged has the offsets {_shortened(ends)}: they must have one axis, begin with 0, never decrease, "
                "and be one more than the rows"
            )
        if ends[-1] != len(self.values):
            raise DataError(
                f"a Ragged has {len(self.values)} values, but its offsets end at {ends[-1]}: the last offset must be "
                "the number of values"
            )
        self._longest: int | None = int(np.diff(ends).max(initial=0))

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> Self:
        """Join the arrays or tensors of one row each, at least one.

        They may differ in the length of their first axis only.

        Raises:
            DataError: they differ in dtype or other axes, or are not arrays.
        """
        rows = list(arrays)
        if not rows:
            raise DataError("Ragged.of() was given no arrays, so the dtype is unknown: give at least one")
        for number, row in enumerate(rows):
            if not (isinstance(row, np.ndarray) or is_tensor(row)) or not row.ndim:
                raise DataError(
                    f"entry {number} of Ragged.of() is a {type(row).__module__}.{type(row).__qualname__}, expected an "
                    "array or tensor with an axis: make it one, such as np.asarray(tokens, np.int64)"
                )
            if not _fits(row, rows[0]):
                raise DataError(
                    f"entry {number} of Ragged.of() is {_described(row)}, but entry 0 is {_described(rows[0])}: they "
                    "may differ in the length of their first axis only, also if it is 0"
                )
        lengths = [len(row) for row in rows]
        if is_tensor(rows[0]):
            offsets = _torch().tensor([0, *lengths], device=rows[0].device).cumsum(0)
            return cls.unchecked(_torch().cat(rows), offsets, max(lengths))
        return cls.unchecked(np.concatenate(rows), np.cumsum([0, *lengths], dtype=np.int64), max(lengths))

    @classmethod
    def cat(cls, parts: Sequence[Ragged]) -> Self:
        """Join the rows of several `Ragged` of one dtype, at least one.

        Raises:
            DataError: they differ in dtype or in other axes.
        """
        first, *rest = parts
        for part in rest:
            if not _fits(part.values, first.values):
                raise DataError(
                    f"values that are {_described(part.values)} cannot follow values that are "
                    f"{_described(first.values)}"
                )
        starts = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
        ends = [part.offsets[1:] + count for part, count in zip(parts, starts, strict=False)]
        join = _torch().cat if is_tensor(first.values) else np.concatenate
        known = [part._longest for part in parts]
        longest = None if None in known else max(length for length in known if length is not None)
        return cls.unchecked(join([part.values for part in parts]), join([first.offsets[:1], *ends]), longest)

    @classmethod
    def unchecked(cls, values: Any, offsets: Any, longest: int | None = None) -> Self:
        """Create a `Ragged` without checking the offsets, which takes time and waits for a GPU.

        Args:
            longest: the largest length, if known.
        """
        ragged_rows = object.__new__(cls)
        ragged_rows.values, ragged_rows.offsets, ragged_rows._longest = values, offsets, longest
        return ragged_rows

    # --- rows ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Any:
        """Length of each row. Shape (rows,)."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def longest(self) -> int:
        """Largest length; 0 without rows."""
        if self._longest is not None:
            return self._longest
        return int(self.lengths.max()) if len(self) else 0

    @property
    def dtype(self) -> Any:
        """Dtype of the values."""
        return self.values.dtype

    def __iter__(self) -> Iterator[Any]:
        ends = self.offsets.tolist()
        return map(self.values.__getitem__, map(slice, ends[:-1], ends[1:]))

    def __getitem__(self, rows: Any) -> Any:
        """Return one row for a number, and a `Ragged` for a slice, whole numbers or one boolean per row.

        A row has shape (length, *rest) and shares memory.

        Raises:
            IndexError: a row does not exist, the number of booleans is wrong, or the index has more than one axis.
            TypeError: the index is something else.
        """
        if isinstance(rows, slice):
            begin, end, step = rows.indices(len(self))
            return self._slice(begin, max(begin, end)) if step == 1 else self._select(range(begin, end, step))
        if isinstance(rows, list | range | np.ndarray) or is_tensor(rows):
            return self._select(rows)
        if not hasattr(rows, "__index__") or isinstance(rows, bool):
            raise TypeError(f"a Ragged was given {rows!r:.40} as an index, expected {_INDICES}")
        return self._row(operator.index(rows))

    def _row(self, row: int) -> Any:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a Ragged with {len(self)} rows")
        row %= len(self)
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def _slice(self, begin: int, end: int) -> Self:
        offsets = self.offsets[begin : end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return self.unchecked(self.values[first:last], offsets - first)

    def _select(self, rows: Any) -> Any:
        index = self._index(rows)
        if not index.ndim:
            return self._row(int(index))
        begins, lengths = self.offsets[:-1][index], self.lengths[index]
        if is_tensor(lengths):
            offsets = _torch().cat([self.offsets[:1], lengths.cumsum(0)])
        else:
            offsets = np.concatenate([self.offsets[:1], np.cumsum(lengths)])
        count = int(offsets[-1])
        positions = _repeated(begins - offsets[:-1], lengths, count) + _counted(count, offsets)
        return self.unchecked(self.values[positions], offsets)

    def _index(self, rows: Any) -> Any:
        """Convert an index to row numbers from 0, on the device of the offsets."""
        if is_tensor(self.offsets):
            torch, device = _torch(), self.offsets.device
            index = torch.as_tensor(list(rows) if isinstance(rows, range) else rows, device=device)
            is_whole = not (index.is_floating_point() or index.is_complex())
        else:
            index = np.asarray(rows.cpu() if is_tensor(rows) else rows)
            is_whole = index.dtype.kind in "iub"
        if isinstance(rows, list) and not rows:
            return _counted(0, self.offsets)  # The dtype of an empty list is meaningless.
        is_mask = str(index.dtype) in ("bool", "torch.bool")
        if not is_whole or (is_mask and not index.ndim):
            raise TypeError(f"a Ragged was given {_described(index)}, as an index, expected {_INDICES}")
        if index.ndim > 1 or (is_mask and len(index) != len(self)):
            raise IndexError(
                f"a Ragged of {len(self)} rows was given {_described(index)}, as an index, expected {_INDICES}"
            )
        if is_mask:
            return index.nonzero()[:, 0] if is_tensor(index) else np.flatnonzero(index)
        if 0 not in index.shape and not (-len(self) <= int(index.min()) and int(index.max()) < len(self)):
            raise IndexError(
                f"rows {int(index.min())} to {int(index.max())} of a Ragged with {len(self)} rows"
            )
        index = index.long() if is_tensor(index) else index.astype(np.int64)
        return index % max(1, len(self))

    # --- other forms ---------------------------------------------------------------------------------

    def padded(self, fill: float = 0, length: int | None = None) -> Any:
        """Return the rows as one array, with shorter rows filled up.

        Args:
            fill: value after a row's entries. Default 0.
            length: length of all rows; longer rows are cut. Default: the longest row's.

        Returns:
            Shape (rows, length, *rest).
        """
        size = self.longest if length is None else length
        shape = (len(self), size, *self.values.shape[1:])
        values, count = self.values, len(self.values)
        begins, numbers = _counted(len(self), self.offsets) * size, _counted(count, self.offsets)
        # Position of each value: its row's start in the result minus its start in `values`, plus its number.
        positions = _repeated(begins - self.offsets[:-1], self.lengths, count) + numbers
        if size < self.longest:
            is_kept = numbers - _repeated(self.offsets[:-1], self.lengths, count) < size
            positions, values = positions[is_kept], values[is_kept]
        if is_tensor(values):
            flat = values.new_full((shape[0] * size, *shape[2:]), fill)
        else:
            flat = np.full((shape[0] * size, *shape[2:]), fill, values.dtype)
        flat[positions] = values
        return flat.reshape(shape)

    def mask(self, length: int | None = None) -> Any:
        """Return booleans of shape (rows, length): True for entries of `padded` that are not filled."""
        size = self.longest if length is None else length
        return _counted(size, self.offsets) < self.lengths[:, None]

    def nested(self) -> Any:
        """Return the rows as a jagged nested tensor of torch, over the same memory.

        Raises:
            DataError: the values are NumPy arrays.
        """
        if not is_tensor(self.values):
            raise DataError(
                "a Ragged of NumPy arrays has no nested tensor: the batches of a data loader have"
            )
        return _torch().nested.nested_tensor_from_jagged(
            self.values, self.offsets, max_seqlen=max(1, self.longest)
        )

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the rows on a torch device.

        Raises:
            DataError: the values are NumPy arrays.
        """
        if not is_tensor(self.values):
            raise DataError("a Ragged of NumPy arrays is on no device: a data loader's batches hold tensors")
        # Known before the copy begins, so that padding does not wait for the copy.
        moved = self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return self.unchecked(moved.values, moved.offsets, self.longest)

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Apply a function that moves or copies both arrays, without changing their numbers."""
        return self.unchecked(function(self.values), function(self.offsets), self._longest)

    def with_values(self, values: Any) -> Self:
        """Return rows of the same lengths with other values, such as a layer's outputs.

        Raises:
            DataError: the number of values differs.
        """
        if len(values) != len(self.values):
            raise DataError(
                f"a Ragged of {len(self.values)} values was given {len(values)} new values: give one for each"
            )
        return self.unchecked(values, self.offsets, self._longest)

    def __repr__(self) -> str:
        rest = "".join(f", {size}" for size in self.values.shape[1:])
        return f"Ragged({len(self)} rows, {len(self.values)} values, shape (any{rest or ','}), {self.dtype})"


def is_tensor(value: object) -> bool:
    """Return True for a torch tensor, by the names of its classes, so that torch need not be imported."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _torch() -> Any:
    return sys.modules["torch"]


def _counted(count: int, like: Any) -> Any:
    """Return 0, 1, ..., as an array, or as a tensor on the device of `like`."""
    return _torch().arange(count, device=like.device) if is_tensor(like) else np.arange(count)


def _repeated(of_rows: Any, lengths: Any, count: int) -> Any:
    """Repeat each row's value for its entries; the total `count` avoids waiting for a GPU."""
    return (
        of_rows.repeat_interleave(lengths, output_size=count)
        if is_tensor(of_rows)
        else np.repeat(of_rows, lengths)
    )


def _fits(one: Any, other: Any) -> bool:
    return (
        is_tensor(one) is is_tensor(other) and one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
    )


def _described(values: Any) -> str:
    kind = "a tensor" if is_tensor(values) else "an array"
    return f"{kind} of shape {tuple(values.shape)}, dtype {values.dtype}"


def _whole_numbers(offsets: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = np.asarray(offsets.cpu() if is_tensor(offsets) else offsets)
    if found.dtype.kind not in "iu":
        raise DataError(f"the offsets of a Ragged have dtype {found.dtype}, expected whole numbers")
    return found.astype(np.int64, copy=False)


def _shortened(offsets: Any) -> str:
    return f"{offsets[:6].tolist() if offsets.ndim else offsets}" + (" ..." if offsets.size > 6 else "")
