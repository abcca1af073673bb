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


def numbers_of(metrics: Mapping[str, Any], step: str) -> dict[str, Any]:
    """Return the metrics of a batch as numbers, tensors on a GPU, or ratios of these.

    Args:
        metrics: numbers, tensors with one element, or ratios.
        step: name of the user's method, for errors.

    Raises:
        MetricError: a value is no number.
    """
    return {
        name: Ratio(_number(value.numerator, step, name), _number(value.denominator, step, name))
        if isinstance(value, Ratio)
        else _number(value, step, name)
        for name, value in metrics.items()
    }


def add(sums: Sums, numbers: Mapping[str, Any], rows: int, step: str) -> None:
    """Add the metrics of one batch.

    Args:
        sums: changed in place.
        numbers: result of `numbers_of`.
        rows: rows of the batch; 0 leaves the sums unchanged but names the metrics.
        step: name of the user's method, for errors.

    Raises:
        MetricError: a value is a `Ratio` in some batches only.
    """
    for name, value in numbers.items():
        is_ratio = isinstance(value, Ratio)
        entry = sums.setdefault(name, [0.0, 0.0, _RATIO] if is_ratio else [0.0, 0])
        if is_ratio is not (len(entry) == 3):
            raise MetricError(
                f"{step}() returned {name!r} as a Ratio in some batches only: return the same kind in each batch"
            )
        if not rows:
            continue
        if isinstance(value, Ratio):
            entry[0] += value.numerator
            entry[1] += value.denominator
        else:
            entry[0] += value * rows
            entry[1] += rows


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
            f"{step}() returned a {type(value).__name__}{shape} for {name!r}, expected one number, the mean over the "
            "batch's rows, or cerebro.Ratio(numerator, denominator)"
        ) from cause
