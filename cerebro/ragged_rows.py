"""Arrays of different lengths: one row's, marked so that it may have any, and those of many rows as two arrays.

The layout is that of Arrow's lists and of torch's jagged tensors: all rows' entries one after another, and where each
row begins. NumPy's arrays and torch's tensors are held alike. Torch is not imported: this module is also for processes
that do not have it, and whoever holds a tensor has loaded it.
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
    "a number, a slice, or a list, array or tensor of whole numbers or of one truth value for each row, in one axis; "
    "what is in the rows is in `values`"
)


class RaggedRow:
    """One row's array that `ragged` has marked.

    Attributes:
        value: the array, as it was given.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"ragged({self.value!r})"


def ragged(array: Any) -> RaggedRow:
    """Mark an array that a row function returns: its first axis may have another length in each row, 0 included.

    All rows have to mark it. Its dtype and its other axes are the same for all of them, also where the length is 0:
    ``np.zeros(0, np.int64)``, ``np.zeros((0, 300), np.float32)``. Batches have a `Ragged` in its place::

        def row_preprocessor(self, row, mode, object_dir):
            return image, ragged(np.asarray(tokens, np.int64))

    Args:
        array: an array or a tensor of one axis or more.
    """
    return RaggedRow(array)


# A dataclass: FSDP and DDP look into these for tensors, where a module takes or returns one.
@dataclass(eq=False, repr=False)
class Ragged:
    """Arrays of different lengths, one for each row: all NumPy's arrays, or all torch's tensors.

    What is computed entry by entry, such as an embedding, is computed on `values` at once::

        vectors = tokens.with_values(embedding(tokens.values))

    Args:
        values: the entries of all rows, one row after another: shape (entries, *rest).
        offsets: where rows begin and end among them, as whole numbers: row ``i`` has ``values[offsets[i]:offsets[i +
            1]]``. Shape (rows + 1,).

    Raises:
        DataError: the offsets do not fit the values.
    """

    values: Any
    offsets: Any

    def __post_init__(self) -> None:
        ends = _whole_numbers(self.offsets)
        if is_tensor(self.values):
            given = self.offsets if is_tensor(self.offsets) else ends
            self.offsets = _torch().as_tensor(given, dtype=_torch().int64, device=self.values.device)
        else:
            self.values, self.offsets = np.asarray(self.values), ends
        if not self.values.ndim:
            raise DataError("the values of a Ragged are one number: they need an axis, along which rows lie")
        if ends.ndim != 1 or not len(ends) or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise DataError(
                f"a Ragged has the offsets {_told(ends)}: they must have one axis, begin with 0 and never fall; there "
                "is one more of them than there are rows"
            )
        if ends[-1] != len(self.values):
            raise DataError(
                f"a Ragged has {len(self.values)} values, but its offsets end at {ends[-1]}: the last offset must be "
                "the number of values"
            )
        self._longest: int | None = int(np.diff(ends).max(initial=0))

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> Self:
        """The rows of a sequence, at least one: arrays, or tensors, of one dtype that differ in their first axis only.

        Raises:
            DataError: they differ otherwise, or are something else.
        """
        rows = list(arrays)
        if not rows:
            raise DataError("Ragged.of() was given no arrays: of none, the dtype is not known")
        for number, row in enumerate(rows):
            if not (isinstance(row, np.ndarray) or is_tensor(row)) or not row.ndim:
                raise DataError(
                    f"entry {number} of Ragged.of() is a {type(row).__module__}.{type(row).__qualname__}, expected an "
                    "array or tensor with an axis: make it one, such as np.asarray(tokens, np.int64)"
                )
            if not _fits(row, rows[0]):
                raise DataError(
                    f"entry {number} of Ragged.of() is {_described(row)}, but entry 0 is {_described(rows[0])}: they "
                    "may differ in their first axis only, also where that is empty"
                )
        lengths = [len(row) for row in rows]
        if is_tensor(rows[0]):
            offsets = _torch().tensor([0, *lengths], device=rows[0].device).cumsum(0)
            return cls.of_fitting(_torch().cat(rows), offsets, max(lengths))
        return cls.of_fitting(np.concatenate(rows), np.cumsum([0, *lengths], dtype=np.int64), max(lengths))

    @classmethod
    def cat(cls, parts: Sequence[Ragged]) -> Self:
        """The rows of several, one after another; at least one, of one dtype.

        Raises:
            DataError: they differ in more than lengths.
        """
        first, *others = parts
        for part in others:
            if not _fits(part.values, first.values):
                raise DataError(
                    f"values that are {_described(part.values)} cannot follow values that are "
                    f"{_described(first.values)}"
                )
        before = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
        ends = [part.offsets[1:] + count for part, count in zip(parts, before, strict=False)]
        join = _torch().cat if is_tensor(first.values) else np.concatenate
        known = [part._longest for part in parts]
        longest = None if None in known else max(length for length in known if length is not None)
        return cls.of_fitting(
            join([part.values for part in parts]), join([first.offsets[:1], *ends]), longest
        )

    @classmethod
    def of_fitting(cls, values: Any, offsets: Any, longest: int | None = None) -> Self:
        """As `Ragged(values, offsets)`, of offsets that are known to fit: to look at them takes time, on a GPU a wait.

        Args:
            longest: the largest length, where it is known.
        """
        made = object.__new__(cls)
        made.values, made.offsets, made._longest = values, offsets, longest
        return made

    # --- rows ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Any:
        """Of each row. Shape (rows,)."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def longest(self) -> int:
        """The largest length; 0 where there is no row."""
        if self._longest is not None:
            return self._longest
        return int(self.lengths.max()) if len(self) else 0

    @property
    def dtype(self) -> Any:
        """Of the values."""
        return self.values.dtype

    def __iter__(self) -> Iterator[Any]:
        ends = self.offsets.tolist()
        return map(self.values.__getitem__, map(slice, ends[:-1], ends[1:]))

    def __getitem__(self, rows: Any) -> Any:
        """A number gives that row's array, of shape (length, *rest), over the same memory. A slice, whole numbers in an
        array, tensor or list, or a truth value for each row give a `Ragged`.

        Raises:
            IndexError: there is no such row, there are fewer or more truth values than rows, or the index has more than
                one axis.
            TypeError: it is something else.
        """
        if isinstance(rows, slice):
            begin, end, step = rows.indices(len(self))
            return self._slice(begin, max(begin, end)) if step == 1 else self._taken(range(begin, end, step))
        if isinstance(rows, list | range | np.ndarray) or is_tensor(rows):
            return self._taken(rows)
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
        return self.of_fitting(self.values[first:last], offsets - first)

    def _taken(self, rows: Any) -> Any:
        index = self._index(rows)
        if not index.ndim:
            return self._row(int(index))
        begins, lengths = self.offsets[:-1][index], self.lengths[index]
        if is_tensor(lengths):
            offsets = _torch().cat([self.offsets[:1], lengths.cumsum(0)])
        else:
            offsets = np.concatenate([self.offsets[:1], np.cumsum(lengths)])
        count = int(offsets[-1])
        places = _repeated(begins - offsets[:-1], lengths, count) + _counted(count, offsets)
        return self.of_fitting(self.values[places], offsets)

    def _index(self, rows: Any) -> Any:
        """Numbers of rows from 0, or one of them, as an array or tensor beside the offsets."""
        if is_tensor(self.offsets):
            torch, device = _torch(), self.offsets.device
            index = torch.as_tensor(list(rows) if isinstance(rows, range) else rows, device=device)
            is_whole = not (index.is_floating_point() or index.is_complex())
        else:
            index = np.asarray(rows.cpu() if is_tensor(rows) else rows)
            is_whole = index.dtype.kind in "iub"
        if isinstance(rows, list) and not rows:
            return _counted(0, self.offsets)  # of an empty list the dtype says nothing
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
        """The rows as one array, the shorter ones filled up at their end.

        Args:
            fill: what comes behind a row's entries.
            length: of all rows: longer ones are cut. By default that of the longest row.

        Returns:
            Shape (rows, length, *rest).
        """
        size = self.longest if length is None else length
        shape = (len(self), size, *self.values.shape[1:])
        values, count = self.values, len(self.values)
        begins, numbers = _counted(len(self), self.offsets) * size, _counted(count, self.offsets)
        # Where each value goes: its row's begin in the one array less that in the other, and its own number.
        places = _repeated(begins - self.offsets[:-1], self.lengths, count) + numbers
        if size < self.longest:
            is_kept = numbers - _repeated(self.offsets[:-1], self.lengths, count) < size
            places, values = places[is_kept], values[is_kept]
        if is_tensor(values):
            flat = values.new_full((shape[0] * size, *shape[2:]), fill)
        else:
            flat = np.full((shape[0] * size, *shape[2:]), fill, values.dtype)
        flat[places] = values
        return flat.reshape(shape)

    def mask(self, length: int | None = None) -> Any:
        """Where `padded` has an entry of a row, and not what it was filled up with: truth values of shape (rows,
        length)."""
        size = self.longest if length is None else length
        return _counted(size, self.offsets) < self.lengths[:, None]

    def nested(self) -> Any:
        """The rows as one of torch's nested tensors, jagged, over the same memory.

        Raises:
            DataError: this holds NumPy's arrays.
        """
        if not is_tensor(self.values):
            raise DataError(
                "a Ragged of NumPy arrays has no nested tensor: the batches of a data loader have"
            )
        return _torch().nested.nested_tensor_from_jagged(
            self.values, self.offsets, max_seqlen=max(1, self.longest)
        )

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """The rows on a device of torch's.

        Raises:
            DataError: this holds NumPy's arrays.
        """
        if not is_tensor(self.values):
            raise DataError("a Ragged of NumPy arrays is on no device: a data loader's batches hold tensors")
        # Known before the copy begins, so that nobody waits for its end to pad rows.
        moved = self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return self.of_fitting(moved.values, moved.offsets, self.longest)

    def map(self, function: Callable[[Any], Any]) -> Self:
        """The rows with both arrays replaced by what `function` makes of them: the same numbers in another place."""
        return self.of_fitting(function(self.values), function(self.offsets), self._longest)

    def with_values(self, values: Any) -> Self:
        """Rows of the same lengths with other values, such as what a layer made of these.

        Raises:
            DataError: there are more or fewer of them.
        """
        if len(values) != len(self.values):
            raise DataError(
                f"a Ragged of {len(self.values)} values was given {len(values)} in their place: there must be one for "
                "each"
            )
        return self.of_fitting(values, self.offsets, self._longest)

    def __repr__(self) -> str:
        rest = "".join(f", {size}" for size in self.values.shape[1:])
        return f"Ragged({len(self)} rows, {len(self.values)} values, shape (any{rest or ','}), {self.dtype})"


def is_tensor(value: object) -> bool:
    """Whether it is one of torch's tensors; by its class's ancestry, so that torch need not be there."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _torch() -> Any:
    return sys.modules["torch"]


def _counted(count: int, beside: Any) -> Any:
    """The numbers from 0, of the kind and in the place of another array or tensor."""
    return _torch().arange(count, device=beside.device) if is_tensor(beside) else np.arange(count)


def _repeated(of_rows: Any, lengths: Any, count: int) -> Any:
    """What each row has, for all its entries: ``count`` of them in all, so that nobody waits for a GPU to add up."""
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
    what = "a tensor" if is_tensor(values) else "an array"
    return f"{what} of shape {tuple(values.shape)}, dtype {values.dtype}"


def _whole_numbers(offsets: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = np.asarray(offsets.cpu() if is_tensor(offsets) else offsets)
    if found.dtype.kind not in "iu":
        raise DataError(f"the offsets of a Ragged have dtype {found.dtype}, expected whole numbers")
    return found.astype(np.int64, copy=False)


def _told(offsets: Any) -> str:
    return f"{offsets[:6].tolist() if offsets.ndim else offsets}" + (" ..." if offsets.size > 6 else "")
