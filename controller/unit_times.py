"""What the units of a fit run have shown: how long they take, and how long it takes to load a model.

A fold of the log beside the board (`controller.fit_board`), and apart from it: it takes microseconds an event, so the
past of a long run is read without a board, and a board that is made anew knows all that the one before had learned.
"""

from __future__ import annotations

from cerebro.contract.events import Event, TaskCommitted
from cerebro.scheduling.estimates import Estimates
from cerebro.state import Run, TaskKey, Visit

_FADING = 0.9
"""Share of a long loading time that is still reckoned with after another unit."""

_RARELY = 4
"""All estimates are made anew when the observations have grown by this fraction of their number: again and again at
first, then ever more rarely, for it costs a pass over all pairs."""


class UnitTimes:
    """Of one fit run. Not thread-safe: one owner.

    Attributes:
        run: its id.
        estimates: learned from its committed units.
        load_s: seconds that loading a model took lately, at the most.
        settled: how often all estimates were made anew; between two times only those of a model change whose unit was
            committed.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.estimates = Estimates()
        self.load_s = 0.0
        self.settled = 0
        self._settle_at = 1

    @classmethod
    def of(cls, run: Run) -> UnitTimes:
        """What the visits of a run tell that stand."""
        made = cls(run.id)
        numbered = (
            (visit.ended, model.id, number)
            for model in run.models.values()
            for number, visit in enumerate(model.visits)
        )
        for _, name, number in sorted(numbered):
            made._observe(name, run.models[name].visits[number])
        return made

    def apply(self, run: Run, event: Event) -> None:
        """Take in an event that the state of its experiment, `run` among it, has just taken in."""
        if isinstance(event, TaskCommitted):
            key = TaskKey.parse(event.task)
            if key.kind == "train" and key.run == self.run:
                self._observe(key.model or "", run.models[key.model or ""].visits[-1])

    def _observe(self, model: str, visit: Visit) -> None:
        self.load_s = max(visit.load_s, _FADING * self.load_s)
        # Without what the process took to start and to import: that is over once and for all.
        seconds = visit.compute_s or visit.ended - visit.started
        self.estimates.observe(model, visit.worker, rows=visit.rows, seconds=seconds)
        count = self.estimates.observations
        if count >= self._settle_at:
            self.estimates.settle()
            self.settled += 1
            self._settle_at = count + 1 + count // _RARELY
