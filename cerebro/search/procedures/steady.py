"""Base of procedures that keep a fixed number of models active."""

from __future__ import annotations

from collections import deque

from cerebro.search.procedure import (
    Add,
    Added,
    Crew,
    Draw,
    Drawn,
    Facts,
    Finish,
    Order,
    Refused,
    Report,
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
        self._drawn = 0
        self._draws_open = 0
        self._adds: deque[int] = deque()
        """Suggestion numbers of the models ordered but not added yet."""

    # --- subclass hooks --------------------------------------------------------------------------

    def grant(self, number: int) -> tuple[int, int]:
        """Return the resource and priority of the model for a suggestion."""
        raise NotImplementedError

    @property
    def samples(self) -> int | None:
        """Maximum number of suggestions; `None`: no limit."""
        return self.facts.samples

    def prepare(self) -> None:
        """Set up after `facts` is set."""

    def entered(self, model: SearchedModel, number: int | None) -> None:
        """Handle an added model. `number` is its suggestion, `None` for a user's model."""

    def refused(self, number: int) -> None:
        """Handle the refusal of a suggestion's model."""

    def judged(self, report: Report) -> list[Order]:
        """Return the orders for existing models after a report."""
        del report
        return []

    def go_on(self, count: int) -> list[Order]:
        """Extend at most `count` models that used up their resource."""
        del count
        return []

    # --- the procedure ---------------------------------------------------------------------------

    def begin(self, facts: Facts) -> list[Order]:
        """Request the first suggestions."""
        self.facts, self._workers = facts, facts.workers
        self.prepare()
        return self._fill()

    def on_report(self, report: Report) -> list[Order]:
        """Handle a report and replace models that ended."""
        self.models.apply(report)
        orders: list[Order] = []
        match report:
            case Drawn():
                self._draws_open -= 1
                self._adds.append(report.number)
                epochs, priority = self.grant(report.number)
                orders.append(Add(hyperparams=report.hyperparams, epochs=epochs, priority=priority))
            case Added(by="search"):
                self.entered(self.models[report.model], self._adds.popleft())
            case Added():
                self.entered(self.models[report.model], None)
            case Refused():
                self.refused(self._adds.popleft())
            case Crew():
                self._workers = report.workers
        return [*orders, *self.judged(report), *self._fill()]

    def _fill(self) -> list[Order]:
        free = self._target - self._open
        orders = self.go_on(free) if free > 0 else []
        remaining = free - len(orders)
        if self.samples is not None:
            remaining = min(remaining, self.samples - self._drawn)
        if remaining > 0:
            self._drawn += remaining
            self._draws_open += remaining
            orders.append(Draw(count=remaining))
        if not orders and not self._open:
            orders.append(Finish(why=f"all {len(self.models)} models have ended"))
        return orders

    @property
    def _target(self) -> int:
        return self._active or PER_WORKER * max(1, self._workers)

    @property
    def _open(self) -> int:
        """Number of active, requested and ordered models."""
        return self.models.num_active + self._draws_open + len(self._adds)
