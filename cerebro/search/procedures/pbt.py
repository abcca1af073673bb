"""The procedure of `cerebro.PBT`: Jaderberg et al., *Population Based Training of Neural Networks*, 2017. Pure.

Synchronous generations: members are compared after the same epoch. The search stops the worst and replaces
them with clones of the best (*truncation selection*). A clone is a new model with a parent, so nothing is
overwritten. Users' models train outside the population.
"""

from __future__ import annotations

import random

from pydantic import JsonValue

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import PBT, ChoiceOf, Distribution, LogUniform
from cerebro.search.grids import nearest
from cerebro.search.procedure import (
    Action,
    Add,
    Added,
    Extend,
    Facts,
    Finish,
    Refused,
    Report,
    Stop,
    Suggest,
    Suggested,
)
from cerebro.search.procedures.rungs import best_first
from cerebro.search.sampling import sample_from
from cerebro.search.searched import SearchedModel, SearchedModels


class PbtSearch:
    """A population and its present generation."""

    facts: Facts

    def __init__(self, choice: PBT) -> None:
        self._choice = choice
        self._size = choice.population
        self._models = SearchedModels()
        self._members: list[SearchedModel] = []
        self._awaited = 0
        """Members suggested or requested but not added yet."""
        self._level = 0
        self._clones = 0

    def begin(self, facts: Facts) -> list[Action]:
        """Request the population's suggestions."""
        self.facts = facts
        self._level = min(self._choice.every, facts.epochs)
        self._size = self._awaited = min(self._size, facts.samples or self._size)
        return [Suggest(count=self._awaited)]

    def on_report(self, report: Report) -> list[Action]:
        """At the end of a generation, extend the best members and replace the others."""
        self._models.apply(report)
        match report:
            case Suggested():
                return [Add(hyperparams=report.hyperparams, epochs=self._level)]
            case Added(by="search"):
                self._awaited -= 1
                self._members.append(self._models[report.model])
            case Refused():
                self._awaited -= 1
        return [] if self._awaited or not self._is_complete else self._select()

    @property
    def _is_complete(self) -> bool:
        return not any(model.is_active and self._level not in model.values for model in self._members)

    def _select(self) -> list[Action]:
        level = self._level
        present = [model for model in self._members if not model.has_ended and level in model.values]
        present = best_first(present, level, self.facts)
        if level == self.facts.epochs or not present:
            return [Finish(why=f"the population of {self._size} has ended after {level} epochs")]
        share = max(1, int(self._choice.quantile * self._size))
        missing = self._size - len(present)
        # A model with a larger resource from a user may have a newer checkpoint, of a later epoch.
        parents = [model for model in present[:share] if model.resource <= level]
        leave = max(0, share - missing) if parents else 0
        staying = present[: max(share, len(present) - leave)]
        self._level = min(level + self._choice.every, self.facts.epochs)
        self._members = list(staying)
        self._awaited = self._size - len(staying) if parents else 0
        actions: list[Action] = [self._extend(model) for model in staying]
        actions += [self._clone(parents) for _ in range(self._awaited)]
        actions += [
            Stop(
                model=model.id,
                why=f"{self.facts.text(model.values[level], model.metrics[level])} after {level} epochs is among the "
                f"worst {len(present) - len(staying)} of {len(present)}",
            )
            for model in present[len(staying) :]
            if model.resource <= level  # otherwise a user has extended it
        ]
        return actions

    def _extend(self, model: SearchedModel) -> Extend:
        self._models.extend(model.id, self._level)
        return Extend(model=model.id, epochs=self._level)

    def _clone(self, parents: list[SearchedModel]) -> Add:
        rng = self.facts.rng(self._clones)
        self._clones += 1
        parent = rng.choice(parents)
        return Add(
            hyperparams=perturbed(parent.hyperparams, self._choice, self.facts, rng),
            epochs=self._level,
            parent=parent.id,
        )


def perturbed(hyperparams: Hyperparameters, choice: PBT, facts: Facts, rng: random.Random) -> Hyperparameters:
    """Multiply each hyperparameter in `choice.perturb` by one of its factors, within the space.

    A value outside the space that is no number, set by a user, stays unchanged. A changed value may meet conditions of
    others: they get a random value, and lose it if their conditions are not met any more.
    """
    found = dict(hyperparams)
    for name, factors in choice.perturb.items():
        if name in found:
            found[name] = _moved(found[name], facts.space[name], rng.choice(factors))
    for name, distribution in facts.space.items():
        if distribution.when and name not in found and distribution.applies(found):
            found[name] = sample_from(distribution, rng)
        elif distribution.when and name in found and not distribution.applies(found):
            del found[name]
    return found


def _moved(value: JsonValue, distribution: Distribution, factor: float) -> JsonValue:
    if isinstance(distribution, ChoiceOf):
        values = distribution.values
        if value not in values:
            return value
        place = values.index(value) + (1 if factor >= 1 else -1)
        return values[min(max(place, 0), len(values) - 1)]
    if not isinstance(value, int | float):
        return value
    moved = nearest(distribution, value * factor)
    step = None if isinstance(distribution, LogUniform) else distribution.step
    if step is not None and moved == value and factor != 1:
        # Below half a step: move by one.
        return nearest(distribution, value + (step if factor > 1 else -step))
    return moved
