"""What all rows of a partition have in common: named fields with a dtype and a shape, and how they are nested.

A `Layout` is taken from the first row, every other row must fit it, and it is stored with the shards. Files
and Arrow are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cerebro.data.trees import DTYPE_NAMES, DTYPES, FlatRow, Node, RowId
from cerebro.errors import DataError, RowError


@dataclass(frozen=True, kw_only=True)
class Field:
    """One leaf of a row: name, NumPy dtype name, and shape without the batch axis (``()`` for numbers)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype of the bytes on disk: a bool is kept as one byte, because Arrow's bits cannot be mapped."""
        return np.dtype(np.uint8 if self.dtype == "bool" else self.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of one row of this field."""
        return math.prod(self.shape) * self.storage.itemsize

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Field:
        """The inverse of `to_json`; DataError for a dtype this version does not know."""
        if value["dtype"] not in DTYPES:
            raise DataError(
                f"field {value['name']!r} has the unknown dtype {value['dtype']!r}: preprocess the data again"
            )
        return cls(name=value["name"], dtype=value["dtype"], shape=tuple(value["shape"]))

    def __str__(self) -> str:
        return f"shape {self.shape}, dtype {self.dtype}"


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
            Field(name=name, dtype=DTYPE_NAMES[value.dtype], shape=value.shape)
            for name, value in row.values.items()
        )
        return cls(fields=fields, structure=row.structure, first_id=row.id)

    @cached_property
    def _expected(self) -> list[tuple[tuple[int, ...], np.dtype[Any], type | None]]:
        """Per field its shape, its dtype, and the Python type whose numbers are stored so."""
        numbers: dict[tuple[str, tuple[int, ...]], type] = {
            ("int64", ()): int,
            ("float32", ()): float,
            ("bool", ()): bool,
        }
        return [
            (item.shape, np.dtype(item.dtype), numbers.get((item.dtype, item.shape))) for item in self.fields
        ]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, ids aside."""
        return sum(item.num_bytes for item in self.fields)

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
        for value, (shape, dtype, number) in zip(found, self._expected, strict=True):
            kind = type(value)
            if kind is np.ndarray:
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
                if value.shape != shape or value.dtype != dtype:
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
                    + (_SAME_SHAPE if mine[name].shape != theirs[name].shape else _SAME_DTYPE)
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
    "such as the largest"
)
_SAME_DTYPE = (
    "all rows of a split need one dtype. Convert in the preprocessor, such as value.astype(np.float32)"
)

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
