"""Procedures that train every model to the end: of a list, and at random."""

from __future__ import annotations

from cerebro.contract.search import Random
from cerebro.search.procedure import Facts, Finish, Order, Report
from cerebro.search.procedures.steady import Steady
from cerebro.search.searched import SearchedModels


class FixedSearch:
    """The models are added by whoever asked for the run; nothing is ordered but the end."""

    def __init__(self) -> None:
        self._models = SearchedModels()

    def begin(self, facts: Facts) -> list[Order]:
        """Nothing: the models have their grants."""
        del facts
        return []

    def told(self, report: Report) -> list[Order]:
        """The end, when no model has a grant left."""
        self._models.told(report)
        if self._models.num_active or not len(self._models):
            return []
        return [Finish(why=f"all {len(self._models)} models have ended")]


class RandomSearch(Steady):
    """Each draw is trained to the end."""

    def __init__(self, choice: Random) -> None:
        super().__init__(choice.active)

    def grant(self, number: int) -> tuple[int, int]:
        """All epochs."""
        del number
        return self.facts.epochs, 0
