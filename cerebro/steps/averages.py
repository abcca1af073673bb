"""Metrics of steps: means over all rows of a pass, from values per batch.

The loop adds each batch's metrics. Sums on a GPU stay there until the end, because reading one waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cerebro.errors import MetricError
from cerebro.spec import Ratio

Sums = dict[str, list[Any]]
"""Metric name -> sum over rows and number of rows, or the two terms of a ratio and "ratio"."""

_RATIO = "ratio"


def add(sums: Sums, metrics: Mapping[str, Any], rows: int, step: str) -> dict[str, Any]:
    """Add the metrics of one batch.

    Args:
        sums: changed in place.
        metrics: result of the user's step; see `StepSpec.validation_step`.
        rows: rows of the batch; 0 leaves the sums unchanged but names the metrics.
        step: name of the user's method, for errors.

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
            total: Any = _number(value.numerator, step, name)
            count: Any = _number(value.denominator, step, name)
        elif isinstance(value, torch.Tensor) and value.ndim == 1 and value.shape[0] == rows > 1:
            # Summed before dividing, so that equal counts of correct rows give equal accuracies.
            total = _number(value.sum(dtype=torch.float64), step, name)
            count, means[name] = rows, total / rows
        else:
            means[name] = _number(value, step, name)
            total, count = means[name] * rows, rows
        if rows:
            entry[0] += total
            entry[1] += count
    return means


def result(sums: Sums) -> dict[str, Any]:
    """Return the metrics of all added rows."""
    return {
        name: Ratio(entry[0], entry[1]) if len(entry) == 3 else float(entry[0]) / max(entry[1], 1)
        for name, entry in sums.items()
    }


def _number(value: Any, step: str, name: str) -> Any:
    """Return a number, or a float64 tensor on a GPU."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item() if value.is_cpu else value.detach().double().reshape(())
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as cause:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise MetricError(
            f"{step}() returned a {type(value).__name__}{shape} for {name!r}, expected one value per row, one number, "
            "which is their mean, or cerebro.Ratio(numerator, denominator)"
        ) from cause
