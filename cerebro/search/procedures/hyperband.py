"""The procedure of `cerebro.Hyperband`: brackets of successive halving. Li et al., JMLR 18 (2018), algorithm 1. Pure.

Brackets overlap here: while one waits for the last model of a rung, the next one trains at a lower priority.
Run one after the other, brackets keep workers busy less than half of the time (docs/search.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

from cerebro.contract.search import Hyperband
from cerebro.search.procedure import Action, Extend, Facts, Refused, Report, Stop
from cerebro.search.procedures.rungs import best_first, bracket_sizes, rung_epochs
from cerebro.search.procedures.steady import Steady
from cerebro.search.searched import SearchedModel


@dataclass(kw_only=True)
class Bracket:
    """One bracket of successive halving.

    Attributes:
        size: number of models at its first rung.
        levels: epochs of its rungs.
        members: models at the present rung or training towards it.
    """

    priority: int
    size: int
    levels: tuple[int, ...]
    members: list[SearchedModel] = field(default_factory=list)
    rung: int = 0
    is_over: bool = False

    @property
    def is_open(self) -> bool:
        """True if the first rung is undecided, so models may join."""
        return self.rung == 0 and not self.is_over

    @property
    def is_complete(self) -> bool:
        """True if all members have reached the present rung or ended."""
        level = self.levels[self.rung]
        is_whole = self.rung > 0 or len(self.members) == self.size
        return is_whole and not any(model.is_active and level not in model.values for model in self.members)

    def decide(self, facts: Facts, eta: int) -> list[Action]:
        """At a complete rung, extend the best 1/eta (at least one) and stop the others.

        Ended models rank last.
        """
        level = self.levels[self.rung]
        present = [model for model in self.members if not model.has_ended and level in model.values]
        present = best_first(present, level, facts)
        places = max(1, len(self.members) // eta)
        self.members, dropped = present[:places], present[places:]
        self.rung += 1
        self.is_over = self.rung == len(self.levels) or not self.members
        if self.is_over:
            return []
        actions: list[Action] = [
            Extend(model=model.id, epochs=self.levels[self.rung], priority=self.priority)
            for model in self.members
        ]
        actions += [
            Stop(
                model=model.id,
                why=f"{facts.text(model.values[level], model.metrics[level])} after epoch {level} is not among the "
                f"best {places}",
            )
            for model in dropped
            if model.resource <= level  # otherwise a user has extended it
        ]
        return actions


class HyperbandSearch(Steady):
    """Brackets in order, those with the most models first. The number of a suggestion determines its bracket."""

    def __init__(self, choice: Hyperband) -> None:
        super().__init__(None)
        self._choice = choice
        self._brackets: list[Bracket] = []
        self._of_suggestion: list[Bracket] = []
        self._of_model: dict[str, Bracket] = {}

    def prepare(self) -> None:
        """Lay out each bracket once.

        With a number of samples, repeat them while the next one fits.
        """
        levels = rung_epochs(self._choice.first, self._choice.eta, self.facts.epochs)
        sizes = bracket_sizes(len(levels), self._choice.eta)[: self._choice.brackets]
        remaining = self.facts.samples
        for place, (start, size) in enumerate(cycle(enumerate(sizes))):
            if place == len(sizes) if remaining is None else size > remaining:
                break
            remaining = None if remaining is None else remaining - size
            bracket = Bracket(priority=-place, size=size, levels=levels[start:])
            self._brackets.append(bracket)
            self._of_suggestion += [bracket] * size

    @property
    def samples(self) -> int:
        """Number of models in all brackets."""
        return len(self._of_suggestion)

    def resource(self, number: int) -> tuple[int, int]:
        """Return the epochs of the bracket's first rung and its priority."""
        bracket = self._of_suggestion[number]
        return bracket.levels[0], bracket.priority

    def on_added(self, model: SearchedModel, number: int | None) -> None:
        """Add the model to its bracket. A user's model with new weights joins the first open bracket."""
        if number is not None:
            bracket = self._of_suggestion[number]
        elif model.is_apart or not (open_ones := [each for each in self._brackets if each.is_open]):
            return
        else:
            bracket = open_ones[0]
            bracket.size += 1
        bracket.members.append(model)
        self._of_model[model.id] = bracket

    def on_refused(self, number: int) -> None:
        """Shrink the bracket by one model."""
        self._of_suggestion[number].size -= 1

    def actions_for(self, report: Report) -> list[Action]:
        """Decide the rung of the model's bracket if it is complete."""
        if isinstance(report, Refused):
            return [action for bracket in self._brackets for action in self._rung_actions(bracket)]
        bracket = self._of_model.get(getattr(report, "model", ""))
        return self._rung_actions(bracket) if bracket else []

    def _rung_actions(self, bracket: Bracket) -> list[Action]:
        actions: list[Action] = []
        while not bracket.is_over and bracket.is_complete:
            for action in bracket.decide(self.facts, self._choice.eta):
                if isinstance(action, Extend):
                    self.models.extend(action.model, action.epochs)
                actions.append(action)
        return actions
