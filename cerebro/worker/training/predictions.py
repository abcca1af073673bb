"""Predictions as one Arrow table per partition: a column ``id`` and the columns that user code returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cerebro.data.tables import write_columns
from cerebro.errors import SpecError

_SINGLE = "prediction"
"""Column name where `predict` returns no dict."""

Columns = dict[str, np.ndarray[Any, Any]]


def write_predictions(path: Path, ids: Sequence[Any], returned: object) -> None:
    """Write what `SubEpochSpec.predict` returned, durably, one entry per row.

    Args:
        ids: of the rows, in the order in which the loader handed them out.
        returned: one array, tensor, list or dict of them for all rows, or an iterable that yields one per batch.

    Raises:
        SpecError: there is not one prediction per row.
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
            raise SpecError(
                f"predict() returned {len(column)} values of {name!r} for {len(ids)} rows: return one "
                "per row, in the order "
                "of the data loader"
            )
    write_columns(path, {"id": list(ids), **columns})


def _joined(returned: object) -> Columns:
    whole = _columns(returned)
    if whole is not None:
        return whole
    if not isinstance(returned, Iterable):
        raise SpecError(f"predict() returned a {type(returned).__name__}, expected one prediction per row")
    batches = [_columns(batch) for batch in returned]
    if not batches or any(batch is None for batch in batches):
        raise SpecError("predict() yielded nothing, or neither an array, nor a tensor, nor a dict of them")
    known = [batch for batch in batches if batch is not None]
    return {name: np.concatenate([batch[name] for batch in known]) for name in known[0]}


def _columns(value: object) -> Columns | None:
    if isinstance(value, Mapping):
        return {str(name): _array(column) for name, column in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return {_SINGLE: _array(value)}
    if isinstance(value, list) and value and not isinstance(value[0], (torch.Tensor, np.ndarray, Mapping)):
        return {_SINGLE: np.asarray(value)}
    return None


def _array(value: object) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
