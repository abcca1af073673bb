"""Measurements of a run's models and parallel plans."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.trials import Inspection, TrialOutcome


@dataclass(kw_only=True, slots=True)
class RunTrials:
    """Inspection and trials of a fit."""

    inspection: Inspection | None = None
    """Groups of alike models and the available parallel plans; `None` without a choice."""
    outcomes: dict[tuple[str, str], TrialOutcome] = field(default_factory=dict)
    """(group id, parallel plan id) of `inspection` -> trial outcome of this or an earlier run."""
    has_recalled: bool = False
    """True once the log says which trials of earlier runs apply."""
