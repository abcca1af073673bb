"""What all rows of a partition have in common: named fields with a dtype and a shape, and how they are nested.

A `Layout` is taken from the first row, every other row must fit it, and it is stored with the shards. Files
and Arrow are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cerebro.data.trees import DTYPE_NAMES, DTYPES, Array, FlatRow, Node, RowId
from cerebro.errors import DataError, RowError
from cerebro.ragged_rows import RaggedRow


@dataclass(frozen=True, kw_only=True)
class Field:
    """One leaf of a row.

    Attributes:
        name: its path in the row.
        dtype: NumPy's name of it.
        shape: without the batch axis, ``()`` for numbers. Of a ragged field the first axis, which may have any length
            in each row, is `None`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def is_ragged(self) -> bool:
        """Whether rows may differ in their first axis."""
        return None in self.shape

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """Of what all rows have alike: of a row; or, where the field is ragged, of one entry along the first axis."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype of the bytes on disk: a bool is kept as one byte, because Arrow's bits cannot be mapped."""
        return np.dtype(np.uint8 if self.dtype == "bool" else self.dtype)

    @property
    def entry_bytes(self) -> int:
        """Bytes of what has `entry_shape`."""
        return math.prod(self.entry_shape) * self.storage.itemsize

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; where the length is any, it is null."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Field:
        """The inverse of `to_json`; DataError for a dtype or a shape this version does not know."""
        if value["dtype"] not in DTYPES:
            raise DataError(
                f"field {value['name']!r} has the unknown dtype {value['dtype']!r}: preprocess the data again"
            )
        if None in value["shape"][1:]:
            raise DataError(
                f"field {value['name']!r} has the shape {value['shape']}, of which more than the first axis may have "
                "any length: preprocess the data again"
            )
        return cls(name=value["name"], dtype=value["dtype"], shape=tuple(value["shape"]))

    def __str__(self) -> str:
        return f"shape {shape_text(self.shape)}, dtype {self.dtype}"


def shape_text(shape: Sequence[int | None]) -> str:
    """A shape as Python writes it, and ``any`` for an axis that has another length in each row: ``(any, 300)``."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What all rows of a partition have in common.

    Attributes:
        fields: the leaves, in the order of the first row.
        structure: nesting of ``input`` and ``output``.
        first_id: the row the layout was taken from, to be named in errors.
    """

    fields: tuple[Field, ...]
    structure: Mapping[str, Node]
    first_id: RowId = field(compare=False)

    @classmethod
    def of(cls, row: FlatRow) -> Layout:
        """The layout that ``row`` sets."""
        fields = tuple(
            Field(
                name=name,
                dtype=DTYPE_NAMES[value.dtype],
                shape=(None, *value.shape[1:]) if name in row.ragged else value.shape,
            )
            for name, value in row.values.items()
        )
        return cls(fields=fields, structure=row.structure, first_id=row.id)

    @cached_property
    def _expected(self) -> list[tuple[tuple[int | None, ...], np.dtype[Any], type | None]]:
        """Per field its shape, its dtype, and the Python type whose numbers are stored so."""
        numbers: dict[tuple[str, tuple[int | None, ...]], type] = {
            ("int64", ()): int,
            ("float32", ()): float,
            ("bool", ()): bool,
        }
        return [
            (item.shape, np.dtype(item.dtype), numbers.get((item.dtype, item.shape))) for item in self.fields
        ]

    @property
    def is_ragged(self) -> bool:
        """Whether one of the fields is."""
        return any(item.is_ragged for item in self.fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, ids aside. Of a ragged field only those that tell where it ends are counted."""
        return sum(OFFSET.itemsize if item.is_ragged else item.entry_bytes for item in self.fields)

    def leaves(self, input_tree: object, output_tree: object) -> list[Any] | None:
        """The leaves of a row in the order of the fields, to be stored as they are.

        None where that cannot be: the row does not have this layout, or its leaves are not NumPy's arrays or
        Python's numbers but need `flatten`, which takes several times as long.
        """
        found: list[Any] = []
        if not (_collect(self.structure["input"], input_tree, found)):
            return None
        if not (_collect(self.structure["output"], output_tree, found)):
            return None
        for position, (shape, dtype, number) in enumerate(self._expected):
            value = found[position]
            kind = type(value)
            if kind is RaggedRow:
                found[position] = value = value.value
                if type(value) is not np.ndarray or not fits(value, shape) or value.dtype != dtype:
                    return None
            elif kind is np.ndarray:
                if value.shape != shape or value.dtype != dtype:
                    return None
            elif kind is not number or (kind is not bool and not _LOWEST[kind] <= value <= _HIGHEST[kind]):
                return None
        return found

    def check(self, row: FlatRow) -> None:
        """Raise RowError unless ``row`` has this layout."""
        if row.structure == self.structure:
            for item, (shape, dtype, _) in zip(self.fields, self._expected, strict=True):
                value = row.values[item.name]
                is_like = fits(value, shape) if item.name in row.ragged else value.shape == shape
                if not is_like or value.dtype != dtype:
                    break
            else:
                return
        self.check_layout(Layout.of(row))

    def check_layout(self, other: Layout) -> None:
        """Raise RowError, naming the first row of ``other``, unless both layouts describe the same rows.

        The order of dict keys is of no account.
        """
        mine = {item.name: item for item in self.fields}
        theirs = {item.name: item for item in other.fields}
        first, row = f"the first row (id {self.first_id!r})", f"row {other.first_id!r}"
        for name in [*mine, *theirs]:
            if name not in theirs:
                raise RowError(f"{row} has no field {name!r}, {first} does: {_SAME_FIELDS}")
            if name not in mine:
                raise RowError(f"{row} has a field {name!r}, {first} does not: {_SAME_FIELDS}")
            if mine[name] != theirs[name]:
                raise RowError(
                    f"field {name!r} of {row} has {theirs[name]}, but {first} has {mine[name]}: "
                    + _remedy(mine[name], theirs[name])
                )
        if self.structure != other.structure:
            raise RowError(
                f"{row} is nested differently from {first} (one is a dict, one a tuple): {_SAME_FIELDS}"
            )

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "fields": [item.to_json() for item in self.fields],
            "structure": dict(self.structure),
            "first_id": self.first_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The inverse of `to_json`."""
        return cls(
            fields=tuple(Field.from_json(item) for item in value["fields"]),
            structure=value["structure"],
            first_id=value["first_id"],
        )


_SAME_FIELDS = "the preprocessor must return the same fields for every row of a split"
_SAME_SHAPE = (
    "all rows of a split need one shape. Pad (np.pad), crop or resize in the preprocessor to a common shape, "
    "such as the largest; or return cerebro.ragged(array) in every row, if only the first axis differs"
)
_SAME_RAGGED = (
    "a field is ragged in all rows of a split or in none. Return cerebro.ragged(array) in every row, whatever its "
    "length; batches have a cerebro.Ragged there"
)
_SAME_ENTRIES = (
    "rows may differ in the first axis of a ragged field only, also where they have no entries, as in "
    "np.zeros((0, 300), np.float32). Pad, crop or resize the other axes in the preprocessor"
)
_SAME_DTYPE = (
    "all rows of a split need one dtype. Convert in the preprocessor, such as value.astype(np.float32)"
)


def _remedy(mine: Field, theirs: Field) -> str:
    """What to do about two fields that differ."""
    if mine.is_ragged != theirs.is_ragged:
        return _SAME_RAGGED
    if mine.shape != theirs.shape:
        return _SAME_ENTRIES if mine.is_ragged else _SAME_SHAPE
    return _SAME_DTYPE


def fits(value: Array, shape: tuple[int | None, ...]) -> bool:
    """Whether a row's array has the shape of a ragged field."""
    return shape[:1] == (None,) and value.ndim == len(shape) and value.shape[1:] == shape[1:]


OFFSET = np.dtype(np.int64)
"""Of what tells where a row of a ragged field ends."""

_LOWEST: Mapping[type, float] = {int: -(2**63), float: -float(np.finfo(np.float32).max)}
_HIGHEST: Mapping[type, float] = {int: 2**63 - 1, float: float(np.finfo(np.float32).max)}


def _collect(node: Node, value: Any, found: list[Any]) -> bool:
    """Append the leaves of ``value`` to ``found`` if it is nested as ``node`` says; whether it is."""
    if isinstance(node, str):
        found.append(value)
        return True
    if isinstance(node, list):
        return (
            type(value) is tuple
            and len(value) == len(node)
            and all(_collect(below, item, found) for below, item in zip(node, value, strict=True))
        )
    if isinstance(node, dict):
        return (
            type(value) is dict
            and value.keys() == node.keys()
            and all(_collect(below, value[key], found) for key, below in node.items())
        )
    return value is None
