"""Predictions as one Arrow table per partition: a column ``id`` and the columns that user code returned.

`model_hopper.handler` writes it for a `predict` task, to the path that the task names on the shared volume; dry runs
write it to a temporary folder. The client joins the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from cerebro.data.tables.whole_tables import write_columns
from cerebro.errors import DataError, SpecError
from cerebro.ragged_rows import Ragged

_SINGLE = "prediction"
"""Column name if `predict` returns no dict."""

Column: TypeAlias = "np.ndarray[Any, Any] | Ragged | list[Any]"
"""One entry per row: numbers, arrays of different lengths, texts, or other Python values for Arrow."""

Columns: TypeAlias = dict[str, Column]


def write_predictions(path: Path, ids: Sequence[Any], returned: object) -> None:
    """Write the result of `SubEpochSpec.predict` durably, one entry per row.

    Args:
        ids: row ids, in the loader's order.
        returned: for all rows an array, a tensor, a `Ragged`, a list of numbers or texts, or a dict of such
            columns (also lists of arrays); or an iterable with one of these, or a list of arrays, per batch.

    Raises:
        SpecError: the number of predictions differs from the rows, or a column cannot be stored.
    """
    columns = _joined(returned)
    taken = sorted({"id", "model"} & set(columns))
    if taken:
        raise SpecError(
            f"predict() returned a column {taken[0]!r}, a name that the table of predictions already uses: choose "
            "another one"
        )
    for name, column in columns.items():
        if len(column) != len(ids):
            is_list = isinstance(returned, list) and len(returned) == len(ids)
            hint = ". A list of arrays has one for each batch: for one for each row return cerebro.Ragged.of(list)"
            raise SpecError(
                f"predict() returned {len(column)} values of {name!r} for {len(ids)} rows: return one per row, in the "
                f"order of the data loader{hint if is_list else ''}"
            )
    try:
        write_columns(path, {"id": list(ids), **columns})
    except DataError as error:
        raise SpecError(f"predict() returned what cannot be stored: {error}") from error


def write_per_row(path: Path, ids: Sequence[Any], values: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write the values per row of a test durably: a column ``id`` and one for each metric.

    Args:
        ids: row ids, in the loader's order.
        values: metric -> one value per row.

    Raises:
        SpecError: a metric has the name of the ids.
    """
    if "id" in values:
        raise SpecError("test() returned values per row of 'id', the name of the rows' ids: choose another")
    write_columns(path, {"id": list(ids), **values})


def _joined(returned: object) -> Columns:
    columns = _columns(returned)
    if columns is not None:
        return columns
    if not isinstance(returned, Iterable):
        raise SpecError(f"predict() returned a {type(returned).__name__}, expected one prediction per row")
    batches = [_columns(batch) or _column_of_arrays(batch) for batch in returned]
    known = [batch for batch in batches if batch is not None]
    if not known or len(known) < len(batches):
        raise SpecError(
            "predict() yielded nothing, or a value that is no array, tensor, Ragged, list, or dict of such values"
        )
    for number, batch in enumerate(known):
        if lacking := sorted(batch.keys() ^ known[0].keys()):
            raise SpecError(
                f"predict() yielded {sorted(batch)} for batch {number} and {sorted(known[0])} for the first: "
                f"{lacking[0]!r} is in one of them only. Yield the same columns for each batch"
            )
    return {name: _as_one(name, [batch[name] for batch in known]) for name in known[0]}


def _columns(value: object, name: str = "") -> Columns | None:
    """Return the columns of one batch or of all rows; `None` for a list with one item per batch."""
    if isinstance(value, Mapping):
        found: Columns = {}
        for key, column in value.items():
            path = f"{name}.{key}" if name else str(key)
            nested = _columns(column, path) if isinstance(column, Mapping) else None
            found |= {path: _column(path, column)} if nested is None else nested
        return found
    is_batches = isinstance(value, list) and (not value or isinstance(value[0], (*_ARRAYS, Mapping)))
    if isinstance(value, (*_ARRAYS, list)) and not is_batches:
        return {_SINGLE: _column(_SINGLE, value)}
    return None


def _column_of_arrays(batch: object) -> Columns | None:
    """Convert a batch that was yielded as a list of arrays, one per row."""
    is_list = isinstance(batch, list) and not (batch and isinstance(batch[0], (Mapping, Ragged)))
    return {_SINGLE: _column(_SINGLE, batch)} if is_list else None


def _column(name: str, value: object) -> Column:
    try:
        if isinstance(value, Ragged):
            return value.map(_array)
        if not isinstance(value, (list, tuple)):
            return np.atleast_1d(_array(value))
        first = value[0] if value else None
        if isinstance(first, (torch.Tensor, np.ndarray)):
            arrays = [_array(entry) for entry in value]
            return Ragged.of(arrays) if arrays[0].ndim else np.asarray(arrays)
        return _array(value) if isinstance(first, (bool, int, float, np.generic)) else list(value)
    except (DataError, TypeError, ValueError) as error:
        raise SpecError(f"predict() returned a column {name!r} that cannot be stored: {error}") from error


def _as_one(name: str, parts: Sequence[Column]) -> Column:
    parts = [part for part in parts if len(part)] or parts[:1]
    if all(isinstance(part, Ragged) for part in parts):
        try:
            return Ragged.cat([part for part in parts if isinstance(part, Ragged)])
        except DataError as error:
            raise SpecError(f"predict() yielded columns {name!r} that differ: {error}") from error
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        if len({array.shape[1:] for array in arrays}) > 1:
            shapes = " and ".join(sorted({str(array.shape[1:]) for array in arrays})[:2])
            raise SpecError(
                f"predict() yielded columns {name!r} whose rows have the shapes {shapes}: yield a cerebro.Ragged, such "
                "as Ragged.of(one array for each row), or pad them to one shape in all batches"
            )
        return np.concatenate(arrays)
    if any(isinstance(part, Ragged) for part in parts):
        raise SpecError(
            f"predict() yielded columns {name!r} that are of arrays of different lengths in one batch and something "
            "else in another: yield a cerebro.Ragged for each"
        )
    return [entry for part in parts for entry in (part.tolist() if isinstance(part, np.ndarray) else part)]


_ARRAYS = (torch.Tensor, np.ndarray, Ragged)


def _array(value: object) -> np.ndarray[Any, Any]:
    if not isinstance(value, torch.Tensor):
        if np.ma.is_masked(value):
            raise ValueError("it has masked elements: fill them by value.filled(...)")
        return np.asarray(value)
    host = value.detach().cpu()
    return (host.float() if host.dtype is torch.bfloat16 else host).numpy()  # NumPy has no bfloat16
