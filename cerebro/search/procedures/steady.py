"""What procedures have in common that train so many models at a time and draw others for those that end."""

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
"""Models that are trained at a time, for each worker. With one, a worker is idle when all models that it has not seen
yet in this epoch are elsewhere: ASHA on 8 workers is busy 0.84 of the time with one and 0.99 with two."""


class Steady:
    """Keeps `active` models with a grant that is not used up; each new one is drawn, until `samples` are."""

    facts: Facts

    def __init__(self, active: int | None) -> None:
        self.models = SearchedModels()
        self._active = active
        self._workers = 0
        self._drawn = 0
        self._draws_open = 0
        self._adds: deque[int] = deque()
        """Numbers of the draws that are about to become models."""

    # --- what differs ----------------------------------------------------------------------------

    def grant(self, number: int) -> tuple[int, int]:
        """Epochs and priority of the model that is made of the draw `number`."""
        raise NotImplementedError

    @property
    def samples(self) -> int | None:
        """How many are drawn at most; `None`: no limit."""
        return self.facts.samples

    def prepare(self) -> None:
        """`facts` are known now."""

    def entered(self, model: SearchedModel, number: int | None) -> None:
        """A model has been added; `number` of its draw, `None`: by a user."""

    def refused(self, number: int) -> None:
        """There will be no model of this draw."""

    def judged(self, report: Report) -> list[Order]:
        """What a report means for the models that there are."""
        del report
        return []

    def go_on(self, count: int) -> list[Order]:
        """Larger grants for at most `count` models that have used up theirs."""
        del count
        return []

    # --- the procedure ---------------------------------------------------------------------------

    def begin(self, facts: Facts) -> list[Order]:
        """Draw the first models."""
        self.facts, self._workers = facts, facts.workers
        self.prepare()
        return self._fill()

    def told(self, report: Report) -> list[Order]:
        """Note it, and replace who has ended."""
        self.models.told(report)
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
        left = free - len(orders)
        if self.samples is not None:
            left = min(left, self.samples - self._drawn)
        if left > 0:
            self._drawn += left
            self._draws_open += left
            orders.append(Draw(count=left))
        if not orders and not self._open:
            orders.append(Finish(why=f"all {len(self.models)} models have ended"))
        return orders

    @property
    def _target(self) -> int:
        return self._active or PER_WORKER * max(1, self._workers)

    @property
    def _open(self) -> int:
        """Models that train, and those that are about to."""
        return self.models.num_active + self._draws_open + len(self._adds)
