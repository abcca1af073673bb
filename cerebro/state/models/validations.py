"""Validations of a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cerebro.contract.metrics import Part, merged


@dataclass(kw_only=True, slots=True)
class ModelValidation:
    """Validated epochs of a model."""

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Epoch -> metrics from the user's test function."""
    row_s: dict[int, float] = field(default_factory=dict)
    """Epoch -> seconds per row in the user's test function, in fits that compare them."""
    unreadable: set[int] = field(default_factory=set)
    """Epochs whose last checkpoint a validation could not read.

    The validation waits. The next sub-epoch reads the same checkpoint and has it recomputed if it is corrupt."""
    parts: dict[int, dict[int, Part]] = field(default_factory=dict)
    """Epoch -> partition -> metrics, of incomplete validations on a fold's partitions."""
    skipped: set[int] = field(default_factory=set)
    """Epochs without validation, because no attempt could read their checkpoint."""
    _settled: int = field(default=0, repr=False, compare=False)
    """Number of leading epochs that await no validation."""

    def may_come(self, epoch: int) -> bool:
        """True if the validation of a completed epoch may still come."""
        return epoch not in self.metrics and epoch not in self.skipped

    def add_part(
        self, epoch: int, partition: int, part: Part, partitions: Collection[int]
    ) -> dict[str, float] | None:
        """Add the metrics of one of a fold's `partitions`; return the epoch's metrics once all are known.

        The order of the commits does not matter.
        """
        parts = self.parts.setdefault(epoch, {})
        parts[partition] = part
        if len(parts) < len(partitions):
            return None
        del self.parts[epoch]
        return merged([parts[each] for each in sorted(parts)])

    def awaited(self, completed_epochs: int) -> list[int]:
        """Return the complete epochs that await validation."""
        while self._settled < completed_epochs and not self.may_come(self._settled + 1):
            self._settled += 1
        return [epoch for epoch in range(self._settled + 1, completed_epochs + 1) if self.may_come(epoch)]

    def skip_unreadable(self) -> None:
        """Skip the validations of unreadable epochs."""
        self.skipped |= self.unreadable
        self.unreadable.clear()

    def retry(self) -> None:
        """Allow skipped validations."""
        self.skipped.clear()
        self._settled = 0
