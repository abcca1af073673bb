"""The common layout of a partition's rows: named fields with dtype and shape, and their nesting.

`ShardWriter` takes the `Layout` from the first row and checks every other row against it; manifests store it; `mapped`
reads columns by it. The module does not know files or Arrow.
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
        name: path of the leaf in the row.
        dtype: NumPy's name of the dtype.
        shape: shape without the batch axis, `()` for numbers. The first axis of a ragged field is `None`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def is_ragged(self) -> bool:
        """True if the first axis may differ from row to row."""
        return None in self.shape

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """Shape of a row; of one entry along the first axis if the field is ragged."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype on disk. A bool is stored as a byte, because Arrow's bits cannot be mapped."""
        return np.dtype(np.uint8 if self.dtype == "bool" else self.dtype)

    @property
    def entry_bytes(self) -> int:
        """Bytes of an array of `entry_shape`."""
        return math.prod(self.entry_shape) * self.storage.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; a variable axis is null."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Field:
        """Return the field of a `to_json` object.

        Raises:
            DataError: the dtype or the shape is unknown.
        """
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
    """Format a shape, with `any` for a variable axis: `(any, 300)`."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Common layout of all rows of a partition.

    Attributes:
        fields: leaves in the order of the first row.
        structure: nesting of `input` and `output`.
        first_id: id of the row that determined the layout, for error messages.
    """

    fields: tuple[Field, ...]
    structure: Mapping[str, Node]
    first_id: RowId = field(compare=False)

    @classmethod
    def of(cls, row: FlatRow) -> Layout:
        """Return the layout of a row."""
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
        """Shape, dtype and equivalent Python type of each field."""
        numbers: dict[tuple[str, tuple[int | None, ...]], type] = {
            ("int64", ()): int,
            ("float32", ()): float,
            ("bool", ()): bool,
        }
        return [
            (item.shape, np.dtype(item.dtype), numbers.get((item.dtype, item.shape))) for item in self.fields
        ]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row without id; a ragged field counts its offset only."""
        return sum(OFFSET.itemsize if item.is_ragged else item.entry_bytes for item in self.fields)

    def leaves(self, input_tree: object, output_tree: object) -> list[Any] | None:
        """Return the leaves of a row in field order, ready to store.

        `None` if the row does not match, or its leaves need the slower `flatten` because they are neither NumPy arrays
        nor Python numbers.
        """
        leaves: list[Any] = []
        if not (_collect(self.structure["input"], input_tree, leaves)):
            return None
        if not (_collect(self.structure["output"], output_tree, leaves)):
            return None
        for position, (shape, dtype, number) in enumerate(self._expected):
            value = leaves[position]
            kind = type(value)
            if kind is RaggedRow:
                leaves[position] = value = value.value
                if type(value) is not np.ndarray or not fits(value, shape) or value.dtype != dtype:
                    return None
            elif kind is np.ndarray:
                if value.shape != shape or value.dtype != dtype:
                    return None
            elif kind is not number or (kind is not bool and not _LOWEST[kind] <= value <= _HIGHEST[kind]):
                return None
        return leaves

    def check(self, row: FlatRow) -> None:
        """Require that a row has this layout.

        Raises:
            RowError: it has another one.
        """
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
        """Require that another layout describes the same rows, in any order of dict keys.

        Raises:
            RowError: it differs; the message names the first row of `other`.
        """
        own_fields = {item.name: item for item in self.fields}
        other_fields = {item.name: item for item in other.fields}
        first, row = f"the first row (id {self.first_id!r})", f"row {other.first_id!r}"
        for name in [*own_fields, *other_fields]:
            if name not in other_fields:
                raise RowError(f"{row} has no field {name!r}, {first} does: {_SAME_FIELDS}")
            if name not in own_fields:
                raise RowError(f"{row} has a field {name!r}, {first} does not: {_SAME_FIELDS}")
            if own_fields[name] != other_fields[name]:
                raise RowError(
                    f"field {name!r} of {row} has {other_fields[name]}, but {first} has {own_fields[name]}: "
                    + _remedy(own_fields[name], other_fields[name])
                )
        if self.structure != other.structure:
            raise RowError(
                f"{row} is nested differently from {first} (one is a dict, one a tuple): {_SAME_FIELDS}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "fields": [item.to_json() for item in self.fields],
            "structure": dict(self.structure),
            "first_id": self.first_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """Return the layout of a `to_json` object."""
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


def _remedy(expected: Field, actual: Field) -> str:
    """Return the advice for two fields that differ."""
    if expected.is_ragged != actual.is_ragged:
        return _SAME_RAGGED
    if expected.shape != actual.shape:
        return _SAME_ENTRIES if expected.is_ragged else _SAME_SHAPE
    return _SAME_DTYPE


def fits(value: Array, shape: tuple[int | None, ...]) -> bool:
    """Return True if a row's array has the shape of a ragged field."""
    return shape[:1] == (None,) and value.ndim == len(shape) and value.shape[1:] == shape[1:]


OFFSET = np.dtype(np.int64)
"""Dtype of the row offsets of a ragged field."""

_LOWEST: Mapping[type, float] = {int: -(2**63), float: -float(np.finfo(np.float32).max)}
_HIGHEST: Mapping[type, float] = {int: 2**63 - 1, float: float(np.finfo(np.float32).max)}


def _collect(node: Node, value: Any, leaves: list[Any]) -> bool:
    """Append the leaves of `value` to `leaves`; return False if its nesting differs from `node`."""
    if isinstance(node, str):
        leaves.append(value)
        return True
    if isinstance(node, list):
        return (
            type(value) is tuple
            and len(value) == len(node)
            and all(_collect(below, item, leaves) for below, item in zip(node, value, strict=True))
        )
    if isinstance(node, dict):
        return (
            type(value) is dict
            and value.keys() == node.keys()
            and all(_collect(below, value[key], leaves) for key, below in node.items())
        )
    return value is None
