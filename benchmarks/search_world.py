"""A world for searches in virtual time: workers, costs and learning curves, without stores, processes and training.

`workers` workers hold a partition each, and a sub-epoch is a model on one of them. A model that has been on all workers
has trained an epoch and is validated at its last worker. The idle worker with the most remaining work chooses among the
idle models it has not trained in this epoch: by highest priority, then by most remaining work within its resource. (In
`python -m research simulate search` the controller decides, which takes too long for a benchmark.) Epochs of models
differ (log-normal, sigma 0.4), and sub-epochs vary by 5%. The number of a model seeds its accuracy `Curve`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cerebro.search.procedure import (
    SEARCH,
    Action,
    Add,
    Added,
    Extend,
    Finish,
    Measured,
    Reached,
    Report,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from research.searches.searches import VALIDATION, Curve


class Decider(Protocol):
    """A search, or a procedure with known facts."""

    def begin(self) -> Sequence[Action]:
        """Return the first actions."""
        ...

    def on_report(self, report: Report) -> Sequence[Action]:
        """Return the actions after a report."""
        ...


class Configurations:
    """Models by the number of their suggestion: the same for all procedures of a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._known: dict[int, Curve] = {}

    def of(self, number: int) -> Curve:
        """Return the curve of a model."""
        if number not in self._known:
            rng = random.Random(f"{self._seed}/{number}")
            best = 0.95 - 0.35 * rng.betavariate(1.2, 1.8)
            height, power = rng.uniform(0.2, 0.6), rng.uniform(0.3, 1.2)
            self._known[number] = Curve(best, height, power, rng.lognormvariate(0, 0.4))
        return self._known[number]

    def measured(self, number: int, epochs: int) -> float:
        """Return the validated accuracy."""
        return self.of(number).measured(epochs, seed=f"{self._seed}/{number}")


@dataclass
class Model:
    """A model of the world."""

    number: int
    resource: int
    priority: int
    open: set[int]
    trained: int = 0
    is_busy: bool = False
    is_stopped: bool = False

    @property
    def is_ready(self) -> bool:
        """True if its next sub-epoch can start."""
        return not self.is_busy and not self.is_stopped and self.trained < self.resource


@dataclass
class Outcome:
    """Result of a search.

    Attributes:
        makespan: seconds until the last sub-epoch ended; an epoch of a typical model takes a second.
        busy: share of the workers' time in sub-epochs, until the last new model started.
        best: (second, best true accuracy of a model after an epoch), ascending.
    """

    makespan: float = 0.0
    busy: float = 0.0
    models: int = 0
    epochs: int = 0
    best: list[tuple[float, float]] = field(default_factory=list)

    def reaches(self, accuracy: float) -> float:
        """Return the second when a model first reached the accuracy; infinite if never."""
        return next((second for second, best in self.best if best >= accuracy), math.inf)


class World:
    """Executes a search; see the module."""

    def __init__(self, configurations: Configurations, *, workers: int, seed: int) -> None:
        self._configurations = configurations
        self._workers = workers
        self._rng = random.Random(f"{seed}/units")
        self._models: dict[str, Model] = {}
        self._num_suggested = 0
        self._now = 0.0
        self._last_new = 0.0
        self._spans: list[tuple[float, float]] = []
        self._agenda: list[tuple[float, int, str, int]] = []
        self._free = set(range(workers))

    def run(self, decider: Decider) -> Outcome:
        """Run until every resource is used up."""
        outcome = Outcome()
        self._carry_out(decider, deque(decider.begin()))
        while True:
            self._assign()
            if not self._agenda:
                break
            self._now, _, name, worker = heapq.heappop(self._agenda)
            self._end_sub_epoch(decider, outcome, name, worker)
        horizon = self._last_new or self._now
        spent = sum(min(seconds, max(0.0, horizon - start)) for start, seconds in self._spans)
        outcome.makespan, outcome.busy = self._now, spent / (self._workers * horizon)
        outcome.models = len(self._models)
        return outcome

    def _assign(self) -> None:
        ready = [name for name, model in self._models.items() if model.is_ready]
        left = {worker: sum(worker in self._models[name].open for name in ready) for worker in self._free}
        for worker in sorted(left, key=lambda worker: (-left[worker], worker)):
            may = [name for name in ready if worker in self._models[name].open]
            if may:
                ready.remove(name := min(may, key=self._precedence))
                self._start_sub_epoch(name, worker)

    def _precedence(self, name: str) -> tuple[float, float, str]:
        model = self._models[name]
        seconds = self._configurations.of(model.number).epoch_s
        return -model.priority, -(model.resource - model.trained) * seconds, name

    def _start_sub_epoch(self, name: str, worker: int) -> None:
        model = self._models[name]
        epoch_s = self._configurations.of(model.number).epoch_s
        seconds = epoch_s / self._workers * self._rng.lognormvariate(0, 0.05)
        if model.open == {worker}:
            seconds += VALIDATION * epoch_s
        model.is_busy = True
        self._free.discard(worker)
        self._spans.append((self._now, seconds))
        heapq.heappush(self._agenda, (self._now + seconds, len(self._spans), name, worker))

    def _end_sub_epoch(self, decider: Decider, outcome: Outcome, name: str, worker: int) -> None:
        model = self._models[name]
        model.is_busy = False
        self._free.add(worker)
        model.open.discard(worker)
        if model.open:
            return
        model.open = set(range(self._workers))
        model.trained += 1
        outcome.epochs += 1
        accuracy = self._configurations.of(model.number).accuracy(model.trained)
        if not outcome.best or accuracy > outcome.best[-1][1]:
            outcome.best.append((self._now, accuracy))
        value = self._configurations.measured(model.number, model.trained)
        metrics = {"accuracy": value}
        reports: list[Report] = [
            Measured(model=name, epoch=model.trained, value=value, metrics=metrics, time=self._now)
        ]
        if model.trained == model.resource:
            reports.append(
                Reached(model=name, epochs=model.trained, value=value, metrics=metrics, time=self._now)
            )
        for report in reports:
            self._carry_out(decider, deque(decider.on_report(report)))

    def _add(self, action: Add) -> Added:
        name, number = f"m{len(self._models):05}", action.hyperparams["number"]
        assert isinstance(number, int)
        model = Model(number, action.epochs, action.priority, set(range(self._workers)))
        if action.parent is not None:
            model.trained = self._models[action.parent].trained
        self._models[name] = model
        self._last_new = self._now
        return Added(
            model=name,
            hyperparams=action.hyperparams,
            is_warm=action.parent is not None,
            epochs=action.epochs,
            trained=model.trained,
        )

    def _carry_out(self, decider: Decider, actions: deque[Action]) -> None:
        while actions:
            match action := actions.popleft():
                case Suggest():
                    for number in range(self._num_suggested, self._num_suggested + action.count):
                        self._num_suggested += 1
                        actions += decider.on_report(Suggested(number=number, hyperparams={"number": number}))
                case Add():
                    actions += decider.on_report(self._add(action))
                case Extend():
                    self._models[action.model].resource = action.epochs
                    self._models[action.model].priority = action.priority
                case Stop():
                    model = self._models[action.model]
                    if not model.is_stopped and model.trained < model.resource:
                        model.is_stopped = True
                        actions += decider.on_report(Stopped(model=action.model, by=SEARCH))
                case Finish():
                    pass
