"""Hyperband: brackets of successive halving. Li et al., *Hyperband*, JMLR 18 (2018), algorithm 1.

Here brackets overlap: while an earlier one waits for the last model of a rung, models of the next one, of a lower
priority, are trained. One bracket after the other keeps workers busy less than half of the time (docs/search.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

from cerebro.contract.search import Hyperband
from cerebro.search.procedure import Extend, Facts, Order, Refused, Report, Stop
from cerebro.search.procedures.rungs import bracket_sizes, rung_epochs
from cerebro.search.procedures.steady import Steady
from cerebro.search.searched import SearchedModel


@dataclass(kw_only=True)
class Bracket:
    """Successive halving of its own models.

    Attributes:
        size: models that it begins with.
        levels: epochs of its rungs.
        members: who is at the present rung, or on the way to it.
    """

    priority: int
    size: int
    levels: tuple[int, ...]
    members: list[SearchedModel] = field(default_factory=list)
    rung: int = 0
    is_over: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its first rung is not decided, so that it takes models."""
        return self.rung == 0 and not self.is_over

    @property
    def is_complete(self) -> bool:
        """Whether nobody is on the way to the present rung; a model that has ended is not."""
        level = self.levels[self.rung]
        is_whole = self.rung > 0 or len(self.members) == self.size
        return is_whole and not any(model.is_active and level not in model.values for model in self.members)

    def decide(self, facts: Facts, eta: int) -> list[Order]:
        """At a complete rung: the best 1/eta go on, at least one; who has ended is worse than all others."""
        level = self.levels[self.rung]
        present = [model for model in self.members if not model.has_ended and level in model.values]
        present.sort(key=lambda model: (-facts.score(model.values[level]), model.number))
        places = max(1, len(self.members) // eta)
        self.members, left = present[:places], present[places:]
        self.rung += 1
        self.is_over = self.rung == len(self.levels) or not self.members
        if self.is_over:
            return []
        orders: list[Order] = [
            Extend(model=model.id, epochs=self.levels[self.rung], priority=self.priority)
            for model in self.members
        ]
        orders += [
            Stop(
                model=model.id,
                why=f"{facts.metric} {model.values[level]:.6g} after epoch {level} is not among the best {places}",
            )
            for model in left
            if model.granted <= level  # else a user has granted more
        ]
        return orders


class HyperbandSearch(Steady):
    """Brackets in order, those with most models first; as a draw has its number, it has its bracket."""

    def __init__(self, choice: Hyperband) -> None:
        super().__init__(None)
        self._choice = choice
        self._brackets: list[Bracket] = []
        self._of_draw: list[Bracket] = []
        self._of_model: dict[str, Bracket] = {}

    def prepare(self) -> None:
        """Each bracket once, or over and over while the next one is within the samples."""
        levels = rung_epochs(self._choice.first, self._choice.eta, self.facts.epochs)
        sizes = bracket_sizes(len(levels), self._choice.eta)[: self._choice.brackets]
        left = self.facts.samples
        for place, (start, size) in enumerate(cycle(enumerate(sizes))):
            if place == len(sizes) if left is None else size > left:
                break
            left = None if left is None else left - size
            bracket = Bracket(priority=-place, size=size, levels=levels[start:])
            self._brackets.append(bracket)
            self._of_draw += [bracket] * size

    @property
    def samples(self) -> int:
        """Those of all brackets."""
        return len(self._of_draw)

    def grant(self, number: int) -> tuple[int, int]:
        """Up to the first rung of its bracket."""
        bracket = self._of_draw[number]
        return bracket.levels[0], bracket.priority

    def entered(self, model: SearchedModel, number: int | None) -> None:
        """A user's model joins the first bracket that is open, unless it began with other weights."""
        if number is not None:
            bracket = self._of_draw[number]
        elif model.is_apart or not (open_ones := [each for each in self._brackets if each.is_open]):
            return
        else:
            bracket = open_ones[0]
            bracket.size += 1
        bracket.members.append(model)
        self._of_model[model.id] = bracket

    def refused(self, number: int) -> None:
        """Its bracket is smaller by one."""
        self._of_draw[number].size -= 1

    def judged(self, report: Report) -> list[Order]:
        """Decide at the rung of the model's bracket, if nobody is on the way to it any more."""
        if isinstance(report, Refused):
            return [order for bracket in self._brackets for order in self._decided(bracket)]
        bracket = self._of_model.get(getattr(report, "model", ""))
        return self._decided(bracket) if bracket else []

    def _decided(self, bracket: Bracket) -> list[Order]:
        orders: list[Order] = []
        while not bracket.is_over and bracket.is_complete:
            for order in bracket.decide(self.facts, self._choice.eta):
                if isinstance(order, Extend):
                    self.models.extend(order.model, order.epochs)
                orders.append(order)
        return orders
