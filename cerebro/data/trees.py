"""(input, output) trees of row functions: flattening into named leaves, and rebuilding for batches.

`ShardWriter` flattens rows and `PartitionLoader` rebuilds batches. A tree is a tensor, an array, a number, a bool, or a
dict or tuple of trees; the output may be None (predict). A leaf's name is its path: `input`, `input.image`, `input.0`,
`output`. This module decides which types can be leaves and their stored dtypes. `cerebro.ragged` marks a leaf whose
length differs from row to row. torch and Arrow are not imported; their classes are recognised by module and name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cerebro.errors import DataError, RowError
from cerebro.ragged_rows import Ragged, RaggedRow, is_tensor

RowId: TypeAlias = int | str
Array: TypeAlias = NDArray[Any]
Node: TypeAlias = "str | list[Node] | dict[str, Node] | None"
"""Nesting of a tree.

A leaf is a field's name, a tuple a list, a dict a dict; no output is None.
"""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""Names of dtypes that can be stored."""

DTYPE_NAMES: Mapping[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPES}
"""Cached names: computing a dtype's name takes microseconds, for every row."""

_MAX_DEPTH = 32  # maximum nesting; a deeper tree contains itself
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class FlatRow:
    """One flattened row: id, leaves by field name, names of ragged fields, nesting."""

    id: RowId
    values: Mapping[str, Array]
    ragged: frozenset[str] = frozenset()
    structure: Mapping[str, Node]


def flatten(row_id: RowId, input_tree: object, output_tree: object) -> FlatRow:
    """Flatten the result of a row function.

    Python bools become bool, ints int64 and floats float32 (torch's convention); arrays and tensors keep dtype and
    shape. Arrays are not copied, so use the result before the trees change.

    Raises:
        RowError: a leaf's type or dtype cannot be stored, or there is no input; the message names row and field.
    """
    values: dict[str, Array] = {}
    ragged: set[str] = set()

    def leaf(name: str, value: object) -> None:
        if isinstance(value, RaggedRow):
            ragged.add(name)
            values[name] = _ragged_leaf(row_id, name, value.value)
        else:
            values[name] = _leaf(row_id, name, value, "row_preprocessor")

    structure = _structure(row_id, input_tree, output_tree, leaf)
    return FlatRow(id=row_id, values=values, ragged=frozenset(ragged), structure=structure)


def flatten_batch(
    ids: Sequence[RowId], input_tree: object, output_tree: object
) -> tuple[Mapping[str, Array | Ragged], FlatRow]:
    """Flatten the result of a batch function for rows with these ids, at least one.

    Returns:
        The leaves by field name, with rows on the first axis, and the first row alone. Arrays are not copied.

    Raises:
        RowError: as `flatten`, or a leaf does not have one entry per row.
    """
    values: dict[str, Array | Ragged] = {}

    def leaf(name: str, value: object) -> None:
        leaf_values = values[name] = _batch_leaf(ids, name, value)
        if isinstance(leaf_values, Ragged) and len(leaf_values) != len(ids):
            raise RowError(
                f"{_batch_text(ids)}: field {name!r} is a Ragged of {len(leaf_values)} rows; batch_preprocessor must "
                f"return one entry for each row, {len(ids)}: offsets has one more than there are rows"
            )
        if not isinstance(leaf_values, Ragged) and leaf_values.shape[:1] != (len(ids),):
            raise RowError(
                f"{_batch_text(ids)}: field {name!r} has shape {leaf_values.shape}; "
                f"batch_preprocessor must return one entry for each row, {len(ids)} on the first axis"
            )

    structure = _structure(ids[0], input_tree, output_tree, leaf)
    first = {name: value[0] for name, value in values.items()}
    ragged = frozenset(name for name, value in values.items() if isinstance(value, Ragged))
    return values, FlatRow(id=ids[0], values=first, ragged=ragged, structure=structure)


def rebuild(node: Node, columns: Mapping[str, Any]) -> Any:
    """Return the tree of `node` with the leaves `columns[field name]`."""
    if isinstance(node, str):
        return columns[node]
    if isinstance(node, list):
        return tuple(rebuild(item, columns) for item in node)
    if isinstance(node, dict):
        return {key: rebuild(item, columns) for key, item in node.items()}
    return None


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to each leaf of a tree. Lists count as nodes too, for trees of user code."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, item) for item in tree)
    return None if tree is None else function(tree)


def first_leaf(tree: Any) -> Any:
    """Return the first leaf of a tree that has leaves."""
    while isinstance(tree, dict | list | tuple):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return tree


_Leaf: TypeAlias = Callable[[str, object], None]


def _structure(row_id: RowId, input_tree: object, output_tree: object, leaf: _Leaf) -> dict[str, Node]:
    """Return the nesting of both trees, and pass each leaf with its name to `leaf`."""
    structure: dict[str, Node] = {"input": _node(row_id, "input", input_tree, leaf, 0)}
    if not _has_leaves(structure["input"]):
        raise RowError(f"row {row_id!r}: the input is empty; the preprocessor must return (input, output)")
    structure["output"] = None if output_tree is None else _node(row_id, "output", output_tree, leaf, 0)
    return structure


def _has_leaves(node: Node) -> bool:
    if isinstance(node, dict):
        return any(map(_has_leaves, node.values()))
    return any(map(_has_leaves, node)) if isinstance(node, list) else True


def _node(row_id: RowId, name: str, value: object, leaf: _Leaf, depth: int) -> Node:
    if depth > _MAX_DEPTH:
        raise RowError(f"row {row_id!r}: field {name[:60]!r} is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        nodes: dict[str, Node] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise RowError(f"row {row_id!r}: field {name!r} has the key {key!r}: keys must be strings")
            nodes[key] = _node(row_id, f"{name}.{_escaped(key)}", item, leaf, depth + 1)
        return nodes
    if isinstance(value, tuple):
        return [_node(row_id, f"{name}.{i}", item, leaf, depth + 1) for i, item in enumerate(value)]
    leaf(name, value)
    return name


def _escaped(key: str) -> str:
    """Escape dots in a key, so that {"a.b": x} and {"a": {"b": x}} get different names."""
    return key.replace("%", "%25").replace(".", "%2E") if "." in key or "%" in key else key


def _leaf(row_id: RowId, name: str, value: object, method: str) -> Array:
    try:
        array = _as_array(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RowError(f"row {row_id!r}: field {name!r} cannot be stored: {error}") from error
    if array is None:
        raise RowError(
            f"row {row_id!r}: field {name!r} is a {type(value).__module__}.{type(value).__qualname__}; "
            f"{method} must return tensors, arrays, numbers, bools, or dicts or tuples of them"
            + _HINTS.get(type(value), ". Use .to_numpy()" if hasattr(value, "to_numpy") else "")
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in DTYPE_NAMES:
        raise RowError(
            f"row {row_id!r}: field {name!r} is an array of dtype {array.dtype}; "
            f"{method} must return one of {', '.join(DTYPES)}{_WORDS if array.dtype.kind in 'OSUT' else ''}"
        )
    return array


def _ragged_leaf(row_id: RowId, name: str, value: object) -> Array:
    if not (isinstance(value, np.ndarray) or is_tensor(value)) or not value.ndim:  # type: ignore[attr-defined]
        raise RowError(
            f"row {row_id!r}: field {name!r} is ragged({type(value).__name__}); mark an array or tensor with an axis, "
            "such as ragged(np.asarray(tokens, np.int64))"
        )
    return _leaf(row_id, name, value, "row_preprocessor")


def _batch_leaf(ids: Sequence[RowId], name: str, value: object) -> Array | Ragged:
    if isinstance(value, RaggedRow):
        raise RowError(
            f"{_batch_text(ids)}: field {name!r} is marked with ragged(), which is for one row; batch_preprocessor "
            "must return a cerebro.Ragged, such as Ragged.of(one array for each row)"
        )
    try:
        converted = _of_arrow(ids, name, value) if _is_arrow_list(value) else value
        if isinstance(converted, Ragged):
            offsets = converted.offsets.cpu().numpy() if is_tensor(converted.offsets) else converted.offsets
            return Ragged(_leaf(ids[0], name, converted.values, "batch_preprocessor"), offsets)
    except DataError as error:
        raise RowError(f"{_batch_text(ids)}: field {name!r} cannot be stored: {error}") from error
    return _leaf(ids[0], name, converted, "batch_preprocessor")


def _is_arrow_list(value: object) -> bool:
    return any(
        base.__module__ == "pyarrow.lib" and base.__name__ in ("ListArray", "LargeListArray")
        for base in type(value).__mro__
    )


def _of_arrow(ids: Sequence[RowId], name: str, lists: Any) -> Ragged:
    """Convert Arrow's lists of numbers to NumPy arrays, without a copy where possible."""
    kind = lists.type.value_type
    if kind.id not in _arrow_numbers():
        raise RowError(
            f"{_batch_text(ids)}: field {name!r} has lists of {kind}; return lists of numbers or bools, or a "
            "cerebro.Ragged of arrays"
        )
    if lists.null_count:
        row = next(
            row for row, is_there in zip(ids, lists.is_valid().to_pylist(), strict=False) if not is_there
        )
        raise RowError(
            f"row {row!r}: field {name!r} is null; return an empty list for a row without entries, such as by "
            "pyarrow.compute.coalesce, or raise an exception to leave rows out"
        )
    values, offsets = lists.flatten(), lists.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    if values.null_count:
        entry = values.is_valid().to_pylist().index(False)
        row = ids[int(np.searchsorted(offsets, entry, side="right")) - 1]
        raise RowError(
            f"row {row!r}: field {name!r} has a null among its entries; fill it, such as by pyarrow.compute.fill_null"
        )
    return Ragged(values.to_numpy(zero_copy_only=False), offsets)


def _arrow_numbers() -> frozenset[int]:
    lib = sys.modules["pyarrow.lib"]
    names = ("BOOL", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
    return frozenset(getattr(lib, f"Type_{name}") for name in (*names, "HALF_FLOAT", "FLOAT", "DOUBLE"))


def _batch_text(ids: Sequence[RowId]) -> str:
    return f"batch of {len(ids)} rows that begins with row {ids[0]!r}"


_WORDS = ". Map words to numbers, such as CLASSES.index(word)"

_HINTS: Mapping[type, str] = {
    list: ". Give a tuple for separate fields, np.asarray(...) for one array, or cerebro.Ragged.of(...) for arrays of "
    "different lengths, one for each row of a batch",
    str: f"{_WORDS}; words can be looked up in the metadata by the row's id",
    bytes: ". Give np.frombuffer(...)",
    type(None): ". Only the output as a whole may be None",
    Ragged: ". A Ragged is of many rows: mark the array of one row with cerebro.ragged(...)",
}


_ARRAYS = (np.ndarray, np.generic)


def _as_array(value: object) -> Array | None:
    """Return the value as an array, or None if its type cannot be a leaf."""
    if isinstance(value, _ARRAYS):
        if np.ma.is_masked(value):
            raise ValueError(
                "it has masked elements, which a tensor cannot say: fill them by value.filled(...)"
            )
        return np.asarray(value)
    if isinstance(value, bool):
        return np.asarray(value)
    if isinstance(value, int):
        return np.asarray(value, dtype=np.int64)
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
            raise OverflowError(f"{value} does not fit float32; return np.float64({value})")
        return np.asarray(value, dtype=np.float32)
    if is_tensor(value):
        array: Array = value.detach().cpu().numpy()  # type: ignore[attr-defined]
        return array
    return None
