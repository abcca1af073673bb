"""A simulated run of a search: it carries out actions and reports results, without a cluster."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from cerebro.contract.records import Hyperparameters
from cerebro.search.procedure import (
    SEARCH,
    Action,
    Add,
    Added,
    Changed,
    Closed,
    Crew,
    Extend,
    Extended,
    Failed,
    Finish,
    Measured,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from cerebro.search.sampling import configuration
from cerebro.search.transducer import Search


@dataclass
class Model:
    """A model as the fold stores it."""

    hyperparams: Hyperparameters
    resource: int
    priority: int = 0
    parent: str | None = None
    is_warm: bool = False
    trained: int = 0
    is_stopped: bool = False
    is_failed: bool = False
    is_kept: bool = False
    resources: list[int] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        """True if it can train."""
        return not (self.is_stopped or self.is_failed) and self.trained < self.resource


def score(hyperparams: Hyperparameters, epoch: int) -> float:
    """Return a reproducible pseudo-random score that improves with epochs."""
    rng = random.Random(repr(sorted(hyperparams.items())))
    return rng.random() - rng.random() / epoch


class SimulatedRun:
    """Carries out the actions of a search and reports results, in an order that a seed determines.

    It replaces cluster and training. A wrong action raises `AssertionError` with the action.

    Args:
        value: returns the metric of hyperparameters after an epoch.
    """

    def __init__(self, search: Search, seed: int = 0, value: Callable[[Hyperparameters, int], float] = score):
        self.search = search
        self.rng = random.Random(seed)
        self.value = value
        self.max_reports = 1_000_000
        self.refused = 0.0
        """Probability that the run refuses a model."""
        self.models: dict[str, Model] = {}
        self.reports: list[Report] = []
        self.actions: list[list[Action]] = []
        self.why = ""
        self.is_late = False
        """True if other actions may happen before the run executes an action."""
        self._decisions: deque[list[Action]] = deque()
        self._pending: deque[int] = deque()
        self._num_suggested = 0
        self._time = 0.0
        self._reports: deque[Report] = deque()
        self._do(search.begin())

    def suggestion(self, number: int) -> Hyperparameters:
        """Return the hyperparameters with this number."""
        return configuration(self.search.facts.space, f"suggest/{number}")

    def metrics(self, hyperparams: Hyperparameters, value: float) -> dict[str, float]:
        """Return all metrics of an epoch with this value of the run's metric."""
        del hyperparams
        return {"score": value, "loss": -value}

    def changed(self, hyperparams: Hyperparameters) -> Hyperparameters:
        """Return hyperparameters that a user has changed."""
        return hyperparams | self.suggestion(self.rng.randrange(10**6))

    # --- Actions of the search ---

    def _do(self, actions: list[Action]) -> None:
        self.actions.append(actions)
        if self.is_late and actions:
            self._decisions.append(actions)
        else:
            self._carry_out(actions)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Suggest():
                    self._pending.extend(range(self._num_suggested, self._num_suggested + action.count))
                    self._num_suggested += action.count
                case Add():
                    self._add(action)
                case Extend():
                    self._extend(action)
                case Stop():
                    model = self.models[action.model]
                    assert self.is_late or not model.is_kept
                    if not model.is_kept or self.rng.random() < 0.5:
                        self.stop(action.model, SEARCH)
                case Finish():
                    assert not self.why, "finished twice"
                    self.why = action.why

    @property
    def requested_stops(self) -> set[str]:
        """Models that the search has stopped."""
        return {action.model for actions in self.actions for action in actions if isinstance(action, Stop)}

    def _extend(self, action: Extend) -> None:
        model = self.models[action.model]
        if model.is_stopped or model.is_failed or action.epochs <= model.resource:
            assert self.is_late, f"{action} of {model}"
            return
        assert action.epochs > model.trained, f"{action} is below what is trained, {model.trained}"
        model.resource, model.priority = action.epochs, action.priority
        model.resources.append(action.epochs)

    def _add(self, action: Add) -> None:
        if self.rng.random() < self.refused:
            self._reports.append(Refused(why="its checkpoint is gone"))
            return
        trained = 0
        if action.parent is not None:
            trained = self.models[action.parent].trained
        if action.epochs <= trained:
            assert self.is_late
            self._reports.append(Refused(why="its parent has been trained further"))
            return
        self.add(action.hyperparams, action.epochs, SEARCH, parent=action.parent, priority=action.priority)

    # --- Actions of the run ---

    def report(self, report: Report) -> None:
        """Report to the search and execute its actions until no report remains."""
        self._reports.append(report)
        self.report_all()

    def report_all(self) -> None:
        """Report all that has happened, and execute the actions that follow.

        Raises:
            AssertionError: the search has received more than `max_reports` reports.
        """
        while self._reports:
            assert len(self.reports) < self.max_reports, f"does not end: {len(self.models)} models"
            self.reports.append(first := self._reports.popleft())
            self._do(self.search.on_report(first))

    def add(
        self,
        hyperparams: Hyperparameters,
        epochs: int,
        by: str,
        *,
        parent: str | None = None,
        is_warm: bool = False,
        priority: int = 0,
    ) -> str:
        """Add a model and queue its report."""
        name = f"m{len(self.models):03}"
        model = Model(hyperparams, epochs, priority, parent, is_warm=is_warm or parent is not None)
        model.trained = self.models[parent].trained if parent else 0
        model.resources.append(epochs)
        self.models[name] = model
        self._reports.append(
            Added(
                model=name,
                hyperparams=hyperparams,
                by=by,
                is_warm=model.is_warm,
                epochs=epochs,
                trained=model.trained,
            )
        )
        return name

    def stop(self, name: str, by: str) -> None:
        """Stop a model, unless it has used its resource."""
        model = self.models[name]
        if model.is_active:
            model.is_stopped = True
            self._reports.append(Stopped(model=name, by=by))

    def suggest(self) -> None:
        """Answer the oldest request for a suggestion."""
        number = self._pending.popleft()
        self.report(Suggested(number=number, hyperparams=self.suggestion(number), time=self._time))

    def train(self, name: str) -> None:
        """Train a model for one epoch, and report it."""
        model = self.models[name]
        model.trained += 1
        self._time += 60
        value = self.value(model.hyperparams, model.trained)
        news: dict[str, Any] = {
            "value": value,
            "metrics": self.metrics(model.hyperparams, value),
            "time": self._time,
        }
        self._reports.append(Measured(model=name, epoch=model.trained, **news))
        if model.trained == model.resource:
            self._reports.append(Reached(model=name, epochs=model.trained, **news))
        self.report_all()

    def step(self) -> bool:
        """Do one random action that needs no user. Return False if no action is possible."""
        active = [name for name, model in self.models.items() if model.is_active]
        chances = [
            *active,
            *(["suggest"] if self._pending else []),
            *(["decide"] * 3 if self._decisions else []),
        ]
        if not chances:
            return False
        chosen = self.rng.choice(chances)
        if chosen == "suggest":
            self.suggest()
        elif chosen == "decide":
            self._carry_out(self._decisions.popleft())
            self.report_all()
        else:
            self.train(chosen)
        return True

    def disturb(self) -> None:
        """Do one random user action or failure."""
        names = list(self.models)
        name = self.rng.choice(names) if names else None
        model = self.models[name] if name else None
        match self.rng.randrange(9):
            case 0 if name and model and model.is_active:
                model.is_failed = True
                self.report(Failed(model=name, time=self._time))
            case 1 if name and model and model.is_active:
                model.is_stopped = True
                self.report(Stopped(model=name, by="ann"))
            case 2 if name and model and (model.is_stopped or model.is_failed):
                model.is_stopped = model.is_failed = False
                model.is_kept = True
                self.report(Resumed(model=name, by="ann", epochs=model.resource))
            case 3 if name and model and not model.is_failed:
                model.resource = max(model.trained, self.rng.randint(1, 2 * self.search.facts.epochs))
                model.is_kept, model.is_stopped = True, False
                self._reports.append(Extended(model=name, epochs=model.resource, by="ann"))
                self.report_all()
            case 4:
                self.report(Crew(workers=self.rng.randint(0, 5)))
            case 5:
                self.add(self.suggestion(1000 + len(self.models)), self.rng.randint(1, 9), "ann")
                self.report_all()
            case 6 if name and model and model.trained:
                resource = model.trained + self.rng.randint(1, 9)
                self.add(self.changed(model.hyperparams), resource, "ann", parent=name)
                self.report_all()
            case 7 if name and model and model.is_active:
                model.hyperparams = self.changed(model.hyperparams)
                self.report(Changed(model=name, hyperparams=model.hyperparams))
            case 8 if self.rng.random() < 0.02:
                self.report(Closed(by="ann"))

    def to_the_end(self, *, disturbances: int = 0, max_steps: int = 200_000) -> Self:
        """Run until the search has ended."""
        self.refused = 0.1 if disturbances else 0.0
        for _ in range(disturbances):
            for _ in range(self.rng.randrange(6)):
                self.step()
            self.disturb()
        for _ in range(max_steps):
            if not self.step():
                return self
        raise AssertionError(f"does not end: {len(self.models)} models after {max_steps} steps")
