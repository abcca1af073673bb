"""Metrics of a stack: sums over all rows of a pass, with one number per member.

`group` adds the metrics of each batch, and writes a member's sums in the form of `cerebro.steps.averages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cerebro.steps import averages


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
        return averages.add(self._sums, metrics, rows, "training_step", number=_numbers, axis=1)

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


def _numbers(value: Any, step: str, name: str) -> Any:
    """Return a float, or one float64 per member."""
    if isinstance(value, torch.Tensor) and value.dim() and value[0].numel() == 1:
        return value.reshape(-1).double()
    if isinstance(value, int | float):
        return float(value)
    raise averages.not_a_number(value, tuple(getattr(value, "shape", ()))[1:], step, name)


def _together(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else torch.tensor(values, dtype=torch.float64)
