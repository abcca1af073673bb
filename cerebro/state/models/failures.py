"""Failure, ruled-out parallel plans and warnings of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from cerebro.contract.parallel_plans import MemoryKind, ParallelPlan
from cerebro.contract.tasks.failures import Failure, FailureKind

_MAX_WARNINGS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RuledOut:
    """A parallel plan ruled out for a model.
    Attributes:
        reason: one line, for people.
        kind: kind of the failure that ruled it out.
        memory_kind: memory that ran out; `None` if unknown or another failure.
        peak_bytes: peak use of that memory by the attempt; 0 if unknown.
    """

    parallel_plan: ParallelPlan
    reason: str
    kind: FailureKind
    memory_kind: MemoryKind | None = None
    peak_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class ModelFailures:
    """Failures and warnings of a model."""

    final: Failure | None = None
    """Failure that ended the model."""
    ruled_out: dict[str, RuledOut] = field(default_factory=dict)
    """Label of each parallel plan ruled out -> the reason (`cerebro.state.models.parallel_plans`)."""
    warnings: Counter[str] = field(default_factory=Counter)
    """Warning -> number of sub-epochs that reported it."""

    def warn(self, warnings: Collection[str]) -> None:
        """Count the warnings of a committed sub-epoch, up to 20 different texts."""
        for text in warnings:
            if text in self.warnings or len(self.warnings) < _MAX_WARNINGS:
                self.warnings[text] += 1

    def warning(self, sub_epochs: int) -> str:
        """Join the warnings of the model's `sub_epochs` sub-epochs to one text."""
        found = [f"{text} (in {number} of {sub_epochs} sub-epochs)" for text, number in self.warnings.items()]
        return "; ".join(found)
