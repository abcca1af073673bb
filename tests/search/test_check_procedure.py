"""The contract suite accepts good procedures and finds mistakes."""

from __future__ import annotations

import itertools
import random

import pytest

from cerebro import choice, loguniform
from cerebro.errors import SearchError
from cerebro.search import Action, Add, Extend, Facts, Report, Suggest, Suggested
from cerebro.testing import check_procedure
from tests.search.own_procedures import Halving

SPACE = {"lr": loguniform(1e-4, 1e-1), "width": choice([8, 16]), "batch_size": 32}


class Plain:
    """Trains each suggestion for all epochs."""

    def begin(self, facts: Facts) -> list[Action]:
        self.facts = facts
        return [Suggest(count=4)]

    def on_report(self, report: Report) -> list[Action]:
        if isinstance(report, Suggested):
            return [Add(hyperparams=report.hyperparams, epochs=self.epochs())]
        return []

    def epochs(self) -> int:
        return self.facts.epochs


class Irregular(Plain):
    """Draws random numbers of its own."""

    def epochs(self) -> int:
        return random.randint(1, 9)


class Endless(Plain):
    """Adds models for ever."""

    number = itertools.count()

    def on_report(self, report: Report) -> list[Action]:
        return [Add(hyperparams={"lr": 0.1, "width": 8, "batch_size": 1 + next(self.number)}, epochs=1)]


class Impossible(Plain):
    """Extends a model that does not exist."""

    def on_report(self, report: Report) -> list[Action]:
        return [Extend(model="m999", epochs=2)]


class NoList(Plain):
    """Returns no list."""

    def on_report(self, report: Report) -> list[Action]:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("make", [Plain, Halving, lambda: Halving(models=5)])
def test_good_procedures_pass(make: type[Plain]) -> None:
    """Also with users who stop and change models."""
    check_procedure(make, SPACE)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Irregular, "other actions for the same reports"),
        (Endless, "does not end"),
        (Impossible, "m999"),
        (NoList, "expected a list of actions"),
        (object, "begin"),
    ],
)
def test_mistakes_are_found(make: type[Plain], problem: str) -> None:
    """The error has the action."""
    with pytest.raises(SearchError, match=problem):
        check_procedure(make, SPACE)
