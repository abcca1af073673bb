"""Metrics of a stack: sums over all rows of a pass, with one number per member.

`group` adds the metrics of each batch, and writes a member's sums in the form of `cerebro.steps.averages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cerebro.errors import MetricError
from cerebro.spec import Ratio

_RATIO = "ratio"


class GroupAverages:
    """Sums of a group's metrics. A number stands for an equal value of all members."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Any]] = {}

    def begin(self, totals: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the members' sums, which are empty unless they resume from savepoints."""
        self._sums = {}
        for name, (_, _, *kind) in totals[0].items():
            if all(name in total for total in totals):
                first, second = (_together([total[name][term] for total in totals]) for term in (0, 1))
                self._sums[name] = [first, second, *kind]

    def add(self, metrics: Mapping[str, Any], rows: int) -> dict[str, Any]:
        """Add the metrics of a batch.

        Args:
            metrics: numbers, tensors with one number, or one per row, for each member, or ratios of numbers.
            rows: rows of the batch.

        Returns:
            Means of the batch, without ratios: numbers, or tensors with one number per member.

        Raises:
            MetricError: a value is no number, or it is a `Ratio` in some batches only.
        """
        means: dict[str, Any] = {}
        for name, value in metrics.items():
            is_ratio = isinstance(value, Ratio)
            entry = self._sums.setdefault(name, [0.0, 0.0, _RATIO] if is_ratio else [0.0, 0])
            if is_ratio is not (len(entry) == 3):
                raise MetricError(
                    f"training_step() returned {name!r} as a Ratio in some batches only: return the same kind in each "
                    "batch"
                )
            if isinstance(value, Ratio):
                total, count = _numbers(value.numerator, name), _numbers(value.denominator, name)
            elif isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == rows > 1:
                total, count = value.sum(1, dtype=torch.float64), rows
                means[name] = total / rows
            else:
                means[name] = _numbers(value, name)
                total, count = means[name] * rows, rows
            entry[0] = entry[0] + total
            entry[1] = entry[1] + count
        return means

    def write(self, position: int, total: dict[str, Any]) -> None:
        """Write a member's sums into `total`."""
        for name, entry in self._sums.items():
            total[name] = [
                each[position].item() if isinstance(each, torch.Tensor) else each for each in entry
            ]

    def keep(self, positions: Sequence[int]) -> None:
        """Keep the sums of these members only, in this order."""
        for entry in self._sums.values():
            entry[:2] = [
                each[list(positions)] if isinstance(each, torch.Tensor) else each for each in entry[:2]
            ]


def _numbers(value: Any, name: str) -> Any:
    """Return a float, or one float64 per member."""
    if isinstance(value, torch.Tensor) and value.dim() and value[0].numel() == 1:
        return value.reshape(-1).double()
    if isinstance(value, int | float):
        return float(value)
    shape = f" of shape {tuple(value.shape[1:])}" if isinstance(value, torch.Tensor) else ""
    raise MetricError(
        f"training_step() returned a {type(value).__name__}{shape} for {name!r}, expected one value per row, "
        "one number, which is their mean, or cerebro.Ratio(numerator, denominator)"
    )


def _together(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else torch.tensor(values, dtype=torch.float64)
