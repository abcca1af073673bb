"""The controller's core of one experiment: events in, steps out. No I/O, no clock, no generator that is not seeded.

Live, after a crash and in simulations it is the same object: a fold of the log with one question to ask of it.
"""

from __future__ import annotations

import math

from cerebro.contract.events import Event, LocatorsChanged
from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState
from controller.assigning import due_s
from controller.crew import World
from controller.decide import Step, decide
from controller.fit_board import FitBoard


class Core:
    """Everything known of an experiment, and what to do next. Not thread-safe.

    Attributes:
        record: what the experiment is.
        state: the fold of its log.
        board: of the fit run that is worked on, `None` while there is none.
    """

    def __init__(self, record: ExperimentRecord) -> None:
        self.record = record
        self.state = ExperimentState(name=record.name)
        self.board: FitBoard | None = None

    def apply(self, event: Event) -> None:
        """Take one event in.

        Raises:
            IllegalEventError: the event does not fit; nothing has changed.
        """
        self.state.apply(event)
        if isinstance(event, LocatorsChanged):
            self.record = self.record.model_copy(update={"locators": event.locators})
        run = self.state.active_run()
        if run is None or not run.models:
            self.board = None
        elif self.board is None or self.board.run != run.id or not self.board.knows(event):
            self.board = FitBoard.of(self.state, run)
        else:
            self.board.apply(self.state, event)

    def wake_s(self, now: float) -> float:
        """Seconds until there is something to decide although nothing happens: a worker is about to end its unit.
        Infinite if there is no such worker."""
        fit = self.board
        if fit is None:
            return math.inf
        busy = (w for w in self.state.workers.values() if w.is_alive and len(w.open_tasks) == 1)
        return min((due for worker in busy if (due := due_s(fit, worker, now))), default=math.inf)

    def decide(self, world: World) -> list[Step]:
        """The steps to take now; empty when there is nothing to do but wait."""
        return decide(self.record, self.state, world, self.board)
