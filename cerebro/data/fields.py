"""What one row is made of: the (input, output) trees a row function returns, as named arrays.

A tree is a tensor, an array, a number, a bool, or a dict or tuple of trees; the output may be None (predict).
Every leaf becomes a field, named by its path: ``input``, ``input.image``, ``input.0``, ``output``. `Layout`
is what all rows of a partition have in common (names, dtypes, shapes, nesting); it is stored with the shards,
and `rebuild` turns columns into a batch of the same nesting.

Torch tensors are recognised by their class's ancestry: this module runs where torch is not installed. Files
and Arrow are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cerebro.errors import DataError, RowError

RowId: TypeAlias = int | str
Array: TypeAlias = NDArray[Any]
Node: TypeAlias = "str | list[Node] | dict[str, Node] | None"
"""Nesting of a tree: a field's name for a leaf, a list for a tuple, a dict for a dict, None for no output."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""Names of the dtypes that can be stored."""
# Looked up for every row: a dtype works its name out anew each time it is asked, in microseconds.
_NAMES: Mapping[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPES}
_DEEPEST = 32  # nesting; deeper is a tree that contains itself
_FLOAT32_MAX = float(np.finfo(np.float32).max)


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
class FlatRow:
    """One row, flattened: its id, its leaves by field name, and its nesting."""

    id: RowId
    values: Mapping[str, Array]
    structure: Mapping[str, Node]


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
            Field(name=name, dtype=_NAMES[value.dtype], shape=value.shape)
            for name, value in row.values.items()
        )
        return cls(fields=fields, structure=row.structure, first_id=row.id)

    @cached_property
    def _expected(self) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        return [(item.name, item.shape, np.dtype(item.dtype)) for item in self.fields]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, ids aside."""
        return sum(item.num_bytes for item in self.fields)

    def check(self, row: FlatRow) -> None:
        """Raise RowError unless ``row`` has this layout."""
        if row.structure == self.structure:
            for name, shape, dtype in self._expected:
                value = row.values[name]
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
                raise RowError(f"{row} has no field {name!r}, {first} has it: {_SAME_FIELDS}")
            if name not in mine:
                raise RowError(f"{row} has a field {name!r} that {first} has not: {_SAME_FIELDS}")
            if mine[name] != theirs[name]:
                raise RowError(
                    f"field {name!r} of {row} has {theirs[name]}, but {first} has {mine[name]}: "
                    + (_SAME_SHAPE if mine[name].shape != theirs[name].shape else _SAME_DTYPE)
                )
        if self.structure != other.structure:
            raise RowError(f"{row} is nested otherwise than {first} (dict against tuple): {_SAME_FIELDS}")

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


_SAME_FIELDS = "row_preprocessor must return the same fields for every row of a split"
_SAME_SHAPE = (
    "all rows of a split need one shape. Pad (np.pad), crop or resize in row_preprocessor to a common shape, "
    "such as the largest"
)
_SAME_DTYPE = (
    "all rows of a split need one dtype. Convert in row_preprocessor, such as value.astype(np.float32)"
)


def flatten(row_id: RowId, input_tree: object, output_tree: object) -> FlatRow:
    """Flatten what a row function returned.

    Python bools become bool, ints int64, floats float32 (torch's convention); arrays and tensors keep their
    dtype and shape. Arrays are not copied: use the result before the trees change.

    Raises:
        RowError: a leaf is of a type or dtype that cannot be stored, or there is no input; names row and
            field.
    """
    values: dict[str, Array] = {}
    structure: dict[str, Node] = {
        "input": _flatten(row_id, "input", input_tree, values, 0),
        "output": None if output_tree is None else _flatten(row_id, "output", output_tree, values, 0),
    }
    if not any(name.startswith("input") for name in values):
        raise RowError(f"row {row_id!r}: the input is empty; row_preprocessor must return (input, output)")
    return FlatRow(id=row_id, values=values, structure=structure)


def rebuild(node: Node, columns: Mapping[str, Any]) -> Any:
    """The tree that ``node`` describes, with ``columns[field name]`` as its leaves."""
    if isinstance(node, str):
        return columns[node]
    if isinstance(node, list):
        return tuple(rebuild(item, columns) for item in node)
    if isinstance(node, dict):
        return {key: rebuild(item, columns) for key, item in node.items()}
    return None


def _flatten(row_id: RowId, name: str, value: object, values: dict[str, Array], depth: int) -> Node:
    if depth > _DEEPEST:
        raise RowError(f"row {row_id!r}: field {name[:60]!r} is nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        nodes: dict[str, Node] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise RowError(f"row {row_id!r}: field {name!r} has the key {key!r}: keys must be strings")
            nodes[key] = _flatten(row_id, f"{name}.{_escaped(key)}", item, values, depth + 1)
        return nodes
    if isinstance(value, tuple):
        return [_flatten(row_id, f"{name}.{i}", item, values, depth + 1) for i, item in enumerate(value)]
    values[name] = _leaf(row_id, name, value)
    return name


def _escaped(key: str) -> str:
    """Dots separate the parts of a name, so {"a.b": x} and {"a": {"b": x}} must not meet."""
    return key.replace("%", "%25").replace(".", "%2E") if "." in key or "%" in key else key


def _leaf(row_id: RowId, name: str, value: object) -> Array:
    try:
        array = _as_array(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RowError(f"row {row_id!r}: field {name!r} cannot be stored: {error}") from error
    if array is None:
        raise RowError(
            f"row {row_id!r}: field {name!r} is a {type(value).__module__}.{type(value).__qualname__}; "
            "row_preprocessor must return tensors, arrays, numbers, bools, or dicts or tuples of them"
            + _HINTS.get(type(value), "")
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _NAMES:
        raise RowError(
            f"row {row_id!r}: field {name!r} is an array of dtype {array.dtype}; "
            f"stored can be {', '.join(DTYPES)}"
        )
    return array


_HINTS: Mapping[type, str] = {
    list: ". Give a tuple for separate fields, or np.asarray(...) for one array",
    str: ". Encode strings as numbers; they can be looked up in the metadata by the row's id",
    bytes: ". Give np.frombuffer(...)",
    type(None): ". Only the output as a whole may be None",
}


def _as_array(value: object) -> Array | None:
    """``value`` as an array, or None where it is not of a type that may be a leaf."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, bool):
        return np.asarray(value)
    if isinstance(value, int):
        return np.asarray(value, dtype=np.int64)
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
            raise OverflowError(f"{value} does not fit float32; return np.float64({value})")
        return np.asarray(value, dtype=np.float32)
    if any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__):
        array: Array = value.detach().cpu().numpy()  # type: ignore[attr-defined]
        return array
    return None
