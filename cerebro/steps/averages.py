"""Metrics of steps: means over all rows of a pass, from values per batch.

The loop adds each batch's metrics. Sums on a GPU stay there until the end, because reading one waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cerebro.errors import MetricError
from cerebro.spec import PerRow, Ratio

Sums = dict[str, list[Any]]
"""Metric name -> sum over rows and number of rows, or the two terms of a ratio and "ratio"."""

RowValues = dict[str, list["torch.Tensor | None"]]
"""Metric name -> per batch one value for each row, or `None`. A batch of one row may have a tensor without axes."""

_RATIO = "ratio"


def number_of(value: Any, step: str, name: str) -> Any:
    """Return a number, or a float64 tensor on a GPU.

    Raises:
        MetricError: the value is no number.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item() if value.is_cpu else value.detach().double().reshape(())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise not_a_number(value, tuple(getattr(value, "shape", ())), step, name) from cause


def not_a_number(value: Any, shape: tuple[int, ...], step: str, name: str) -> MetricError:
    """Return the error for a metric that is no number."""
    of_shape = f" of shape {shape}" if hasattr(value, "shape") else ""
    return MetricError(
        f"{step}() returned a {type(value).__name__}{of_shape} for {name!r}, expected one value per row, one number, "
        "which is their mean, or cerebro.Ratio(numerator, denominator)"
    )


def add(
    sums: Sums,
    metrics: Mapping[str, Any],
    rows: int,
    step: str,
    *,
    number: Callable[[Any, str, str], Any] = number_of,
    axis: int = 0,
    values: RowValues | None = None,
) -> dict[str, Any]:
    """Add the metrics of one batch.

    Args:
        sums: changed in place.
        metrics: result of the user's step; see `StepSpec.validation_step`.
        rows: rows of the batch; 0 leaves the sums unchanged but names the metrics.
        step: name of the user's method, for errors.
        number: converts a value, the name of the step and of the metric to a number, or to one number per model of a
            stack.
        axis: axis of the rows: 1 for values of a stack.
        values: changed in place: gets the values of metrics with one value per row.

    Returns:
        Means of the batch, without ratios: numbers, or tensors with one element.

    Raises:
        MetricError: a value is no number, or it is a `Ratio` in some batches only.
    """
    means: dict[str, Any] = {}
    for name, value in metrics.items():
        is_ratio = isinstance(value, Ratio)
        entry = sums.setdefault(name, [0.0, 0.0, _RATIO] if is_ratio else [0.0, 0])
        if is_ratio is not (len(entry) == 3):
            raise MetricError(
                f"{step}() returned {name!r} as a Ratio in some batches only: return the same kind in each batch"
            )
        if isinstance(value, Ratio):
            total: Any = number(value.numerator, step, name)
            count: Any = number(value.denominator, step, name)
        elif isinstance(value, torch.Tensor) and value.ndim == axis + 1 and value.shape[axis] == rows > 1:
            # Summed before dividing, so that equal counts of correct rows give equal accuracies.
            total = number(value.sum(axis, dtype=torch.float64), step, name)
            count, means[name] = rows, total / rows
        else:
            means[name] = number(value, step, name)
            total, count = means[name] * rows, rows
        if rows:
            entry[:2] = _plus(entry[0], total), _plus(entry[1], count)
            if values is not None:
                is_per_row = isinstance(value, torch.Tensor) and (
                    tuple(value.shape) == (rows,) or (rows == 1 and not value.ndim)
                )
                # A copy, because a view would keep the memory of the whole batch.
                values.setdefault(name, []).append(value.detach().clone() if is_per_row else None)
    return means


def result(sums: Sums) -> dict[str, Any]:
    """Return the metrics of all added rows."""
    return {
        name: Ratio(entry[0], entry[1]) if len(entry) == 3 else float(entry[0]) / max(entry[1], 1)
        for name, entry in sums.items()
    }


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one = one.to(other.device)  # a resumed stack's sums are on the CPU
    return one + other


def per_row(values: RowValues, rows: int) -> dict[str, PerRow]:
    """Return the metrics that have one value for each of `rows` rows."""
    found: dict[str, PerRow] = {}
    for name, batches in values.items():
        tensors = [batch for batch in batches if batch is not None]
        has_axis = any(tensor.ndim for tensor in tensors)  # else the metric may be a mean
        if has_axis and len(tensors) == len(batches) and sum(tensor.numel() for tensor in tensors) == rows:
            found[name] = PerRow(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    return found
