"""Steps of the cores, written to the store. The only place where the loop changes an experiment's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.contract.events import RunFinished, RunPaused
from cerebro.contract.rest import api
from cerebro.runtime.kvs.client import KvsClient
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.loop.admission import Admission
from controller.loop.event_logging import line
from controller.loop.leadership import Leadership
from controller.loop.log_reading import LogReading
from controller.scaling.membership import Membership

log = logging.getLogger(__name__)


@dataclass
class StepWriter:
    """Writes steps and applies the resulting events. Owned by the loop; not thread-safe.

    Attributes:
        written_at: monotonic time of the last write.
    """

    kvs: KvsClient
    leadership: Leadership
    reading: LogReading
    membership: Membership
    admission: Admission
    written_at: float = 0.0

    def write(self, core: Core, steps: Sequence[Step]) -> bool:
        """Write steps and apply their events; return False if nothing changed.

        Raises:
            RetryableError, ConflictError: the store is unavailable, or another controller leads.
        """
        request = api.DecideRequest(
            term=self.leadership.newest_term, after=core.state.seq, steps=tuple(steps)
        )
        answer = self.kvs.decide(core.state.name, request)
        self.written_at = time.monotonic()
        for step, outcome in zip(steps, answer.outcomes, strict=True):
            if outcome.outcome == "refused":
                log.info("refused %s: %s", line(step), outcome.reason)
                self.membership.invalidate()
            if isinstance(step, api.Note) and isinstance(step.event, RunPaused):
                # The workers' reports of free space are old: read them again.
                self.membership.invalidate()
            if is_end(step):
                self.admission.invalidate()  # another run may start
        self.reading.apply(core, answer.events)
        # Events allow a new decision, even if they are the reason for a refusal.
        return bool(answer.events) or any(outcome.outcome == "done" for outcome in answer.outcomes)


def is_end(step: Step) -> bool:
    """True if the step ends a run."""
    return isinstance(step, api.Note) and isinstance(step.event, RunFinished)
