"""Procedures as a user may write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from cerebro.contract.records import Hyperparameters
from cerebro.search import (
    Action,
    Add,
    Added,
    Crew,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Procedure,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)


class Halving(Procedure):
    """Add `models` models for one epoch; the better half continues for twice as many epochs, and so on."""

    sampler: Any = None

    def __init__(self, models: int = 8) -> None:
        self.models = models

    def begin(self, facts: Facts) -> list[Action]:
        self.facts, self.grant = facts, 1
        self.waiting: dict[str, float] = {}
        self.scores: dict[str, float] = {}
        self.to_come = self.models
        return [Suggest(count=self.models)]

    def on_report(self, report: Report) -> list[Action]:
        """Decide once each training model has used its grant."""
        actions: list[Action] = []
        match report:
            case Suggested():
                actions.append(Add(hyperparams=report.hyperparams, epochs=1))
            case Added(by="search"):
                self.to_come -= 1
                self.waiting[report.model] = 0.0
            case Refused():
                self.to_come -= 1
            case Reached() if report.model in self.waiting:
                del self.waiting[report.model]
                self.scores[report.model] = self.facts.score(report.value)
            case Failed() | Stopped() | Extended() | Resumed():  # A user has changed the plan for this model.
                self.waiting.pop(report.model, None)
                self.scores.pop(report.model, None)
        if actions or self.waiting or self.to_come:
            return actions
        return self._halve()

    def _halve(self) -> list[Action]:
        ranked = sorted(self.scores, key=lambda name: (-self.scores[name], name))
        if self.grant >= self.facts.epochs or not ranked:
            return [Finish(why="the best is trained to the end")]
        self.grant = min(2 * self.grant, self.facts.epochs)
        best = ranked[: max(1, len(ranked) // 2)]
        self.scores, self.waiting = {}, dict.fromkeys(best, 0.0)
        losers = [name for name in ranked if name not in best]
        return [
            *(Stop(model=name, why="it is in the worse half") for name in losers),
            *(Extend(model=name, epochs=self.grant) for name in best),
        ]


class Clones(Procedure):
    """Train two models with random values from `facts`, then a clone of the first."""

    def begin(self, facts: Facts) -> list[Action]:
        self.facts, self.names, self.is_cloned = facts, list[str](), False
        rng = facts.rng(0)
        return [Add(hyperparams={"lr": rng.random(), "batch_size": 1}, epochs=1) for _ in range(2)]

    def on_report(self, report: Report) -> list[Action]:
        match report:
            case Reached() if not self.is_cloned and self.facts.epochs > 1:
                self.is_cloned = True
                values: Hyperparameters = {"lr": self.facts.rng(1).random(), "batch_size": 1}
                return [Add(hyperparams=values, epochs=self.facts.epochs, parent=report.model, priority=1)]
            case Reached() if report.epochs == self.facts.epochs:
                return [Finish(why="the clone is trained")]
            case Failed() | Stopped() | Refused() | Crew(workers=0):
                return [Finish(why="something else happened")]
        return []


class Scripted(Procedure):
    """Return fixed orders at the start and computed actions after each report."""

    def __init__(self, first: object, then: Callable[[Report], object] = lambda _report: []) -> None:
        self.first, self.then = first, then

    def begin(self, facts: Facts) -> list[Action]:
        return cast(list[Action], self.first)  # The wrong type, as a user may return it.

    def on_report(self, report: Report) -> list[Action]:
        return cast(list[Action], self.then(report))
