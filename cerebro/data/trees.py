"""The (input, output) trees a row function returns, as leaves with names, and batches as trees again.

A tree is a tensor, an array, a number, a bool, or a dict or tuple of trees; the output may be None (predict).
A leaf is named by its path: ``input``, ``input.image``, ``input.0``, ``output``. Here it is decided what may
be a leaf, and with which dtype it is stored.

Torch tensors are recognised by their class's ancestry: this module runs where torch is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cerebro.errors import RowError

RowId: TypeAlias = int | str
Array: TypeAlias = NDArray[Any]
Node: TypeAlias = "str | list[Node] | dict[str, Node] | None"
"""Nesting of a tree: a field's name for a leaf, a list for a tuple, a dict for a dict, None for no output."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""Names of the dtypes that can be stored."""

DTYPE_NAMES: Mapping[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPES}
"""To look names up for every row: a dtype works its name out anew each time it is asked, in microseconds."""

_DEEPEST = 32  # nesting; deeper is a tree that contains itself
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class FlatRow:
    """One row, flattened: its id, its leaves by field name, and its nesting."""

    id: RowId
    values: Mapping[str, Array]
    structure: Mapping[str, Node]


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
        raise RowError(f"row {row_id!r}: the input is empty; the preprocessor must return (input, output)")
    return FlatRow(id=row_id, values=values, structure=structure)


def flatten_batch(
    ids: Sequence[RowId], input_tree: object, output_tree: object
) -> tuple[Mapping[str, Array], FlatRow]:
    """Flatten what a batch function returned for rows of these ids, at least one.

    Returns:
        The leaves by field name, with an entry for each row on the first axis; and the first row by itself. Arrays are
        not copied.

    Raises:
        RowError: as `flatten`; or a leaf has more or fewer entries than there are rows.
    """
    found = flatten(ids[0], input_tree, output_tree)
    for name, value in found.values.items():
        if value.shape[:1] != (len(ids),):
            raise RowError(
                f"batch of {len(ids)} rows that begins with row {ids[0]!r}: field {name!r} has shape {value.shape}; "
                f"batch_preprocessor must return one entry for each row, {len(ids)} on the first axis"
            )
    first = {name: value[0] for name, value in found.values.items()}
    return found.values, FlatRow(id=ids[0], values=first, structure=found.structure)


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
            "the preprocessor must return tensors, arrays, numbers, bools, or dicts or tuples of them"
            + _HINTS.get(type(value), "")
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in DTYPE_NAMES:
        raise RowError(
            f"row {row_id!r}: field {name!r} is an array of dtype {array.dtype}; "
            f"return one of {', '.join(DTYPES)}"
        )
    return array


_HINTS: Mapping[type, str] = {
    list: ". Give a tuple for separate fields, or np.asarray(...) for one array",
    str: ". Encode strings as numbers; they can be looked up in the metadata by the row's id",
    bytes: ". Give np.frombuffer(...)",
    type(None): ". Only the output as a whole may be None",
}


_ARRAYS = (np.ndarray, np.generic)


def _as_array(value: object) -> Array | None:
    """``value`` as an array, or None where it is not of a type that may be a leaf."""
    if isinstance(value, _ARRAYS):
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
