"""`Steady`: base of procedures that keep a fixed number of models active (random search, ASHA, Hyperband).

It requests suggestions and adds models; subclasses decide on resources, extensions and stops.
"""

from __future__ import annotations

from collections import deque

from cerebro.search.procedure import (
    Action,
    Add,
    Added,
    Crew,
    Facts,
    Finish,
    Refused,
    Report,
    Suggest,
    Suggested,
)
from cerebro.search.searched import SearchedModel, SearchedModels

PER_WORKER = 2
"""Active models for each worker.

With one, a worker is idle while all models it still needs in this epoch are elsewhere: ASHA on 8 workers is
busy 0.84 of the time with one model per worker, 0.99 with two.
"""


class Steady:
    """Keeps `active` models training. Requests a suggestion for each new one, up to `samples`."""

    facts: Facts

    def __init__(self, active: int | None) -> None:
        self.models = SearchedModels()
        self._active = active
        self._workers = 0
        self._num_suggested = 0
        self._suggestions_open = 0
        self._adds: deque[int] = deque()
        """Suggestion numbers of the models requested but not added yet."""

    # --- subclass hooks --------------------------------------------------------------------------

    def resource(self, number: int) -> tuple[int, int]:
        """Return the resource and priority of the model for a suggestion."""
        raise NotImplementedError

    @property
    def samples(self) -> int | None:
        """Maximum number of suggestions; `None`: no limit."""
        return self.facts.samples

    def prepare(self) -> None:
        """Set up after `facts` is set."""

    def on_added(self, model: SearchedModel, number: int | None) -> None:
        """Handle an added model. `number` is its suggestion, `None` for a user's model."""

    def on_refused(self, number: int) -> None:
        """Handle the refusal of a suggestion's model."""

    def actions_for(self, report: Report) -> list[Action]:
        """Return the actions for existing models after a report."""
        del report
        return []

    def promote(self, count: int) -> list[Action]:
        """Extend at most `count` models that used up their resource."""
        del count
        return []

    # --- the procedure ---------------------------------------------------------------------------

    def begin(self, facts: Facts) -> list[Action]:
        """Request the first suggestions."""
        self.facts, self._workers = facts, facts.workers
        self.prepare()
        return self._fill()

    def on_report(self, report: Report) -> list[Action]:
        """Handle a report and replace models that ended."""
        self.models.apply(report)
        actions: list[Action] = []
        match report:
            case Suggested():
                self._suggestions_open -= 1
                self._adds.append(report.number)
                epochs, priority = self.resource(report.number)
                actions.append(Add(hyperparams=report.hyperparams, epochs=epochs, priority=priority))
            case Added(by="search"):
                self.on_added(self.models[report.model], self._adds.popleft())
            case Added():
                self.on_added(self.models[report.model], None)
            case Refused():
                self.on_refused(self._adds.popleft())
            case Crew():
                self._workers = report.workers
        return [*actions, *self.actions_for(report), *self._fill()]

    def _fill(self) -> list[Action]:
        free = self._target - self._open
        actions = self.promote(free) if free > 0 else []
        remaining = free - len(actions)
        if self.samples is not None:
            remaining = min(remaining, self.samples - self._num_suggested)
        if remaining > 0:
            self._num_suggested += remaining
            self._suggestions_open += remaining
            actions.append(Suggest(count=remaining))
        if not actions and not self._open:
            actions.append(Finish(why=f"all {len(self.models)} models have ended"))
        return actions

    @property
    def _target(self) -> int:
        return self._active or PER_WORKER * max(1, self._workers)

    @property
    def _open(self) -> int:
        """Number of active and requested models."""
        return self.models.num_active + self._suggestions_open + len(self._adds)
