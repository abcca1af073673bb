"""Procedures that train every model for all epochs: random search, and the given models of a fit. Pure."""

from __future__ import annotations

from cerebro.contract.search import Random
from cerebro.search.procedure import Action, Facts, Finish, Report
from cerebro.search.procedures.steady import Steady
from cerebro.search.searched import SearchedModels


class FixedSearch:
    """A fixed list of models, which the run's request adds: for a fit with only stop rules or an hour limit."""

    def __init__(self) -> None:
        self._models = SearchedModels()

    def begin(self, facts: Facts) -> list[Action]:
        """Return no actions: the run adds the request's models with their resources."""
        del facts
        return []

    def on_report(self, report: Report) -> list[Action]:
        """Finish when no model is active."""
        self._models.apply(report)
        if self._models.num_active or not len(self._models):
            return []
        return [Finish(why=f"all {len(self._models)} models have ended")]


class RandomSearch(Steady):
    """Trains each suggestion for all epochs."""

    def __init__(self, choice: Random) -> None:
        super().__init__(choice.active)

    def resource(self, number: int) -> tuple[int, int]:
        """Return all epochs and priority 0."""
        del number
        return self.facts.epochs, 0
