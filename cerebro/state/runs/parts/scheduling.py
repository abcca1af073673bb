"""How a fit is scheduled: its policy, plans, forecasts and reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.events import EpochCompleted, ForecastMade, SchedulePlanned


@dataclass(kw_only=True, slots=True)
class RunScheduling:
    """Policy of a fit, with its plans, forecasts and reports."""

    scheduler: str = ""
    """Name of the policy that dispatches sub-epochs; only the dispatcher knows the valid names."""
    has_planner: bool = False
    """True if the run may follow a plan; a user's newest choice."""
    planned: SchedulePlanned | None = None
    """The newest plan; dispatch follows it if it applies."""
    has_added: bool = False
    """True if models or epochs were added after the start."""
    forecasts: list[ForecastMade] = field(default_factory=list)
    """Forecasts of the end, oldest first."""
    epochs: list[EpochCompleted] = field(default_factory=list)
    """Scheduling report of each epoch that all models have trained."""
    epoch_ends: dict[int, float] = field(default_factory=dict)
    """Epoch -> end of its newest sub-epoch."""
    reported_until: float = 0.0
    """End of the newest sub-epoch in the last report of `epochs`."""

    def observe_added(self) -> None:
        """Record that a user or a search added models or epochs."""
        self.has_added = True
        self.planned = None

    def add_report(self, report: EpochCompleted) -> None:
        """Add the report on an epoch that all active models have completed."""
        self.epochs.append(report)
        ends = (end for epoch, end in self.epoch_ends.items() if epoch <= report.epoch)
        self.reported_until = max(ends, default=0.0)
