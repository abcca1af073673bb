"""Events applied to the folds of experiments, and passed to projections, metrics and the service log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from cerebro.contract.events import (
    Event,
    ReplicasChanged,
    SchedulerChanged,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from controller.decisions.core import Core
from controller.loop.event_logging import fields, line
from controller.loop.log_keeper import LogKeeper, Progress
from controller.metrics import Metrics
from controller.projections.projection import Projections

log = logging.getLogger(__name__)


_REPORT_EVERY = 1_000
"""Events between two progress reports to the log keeper."""


class LogReading:
    """Applies events. Owned by the loop; not thread-safe.

    Args:
        keeper: makes snapshots of logs by their progress; `None` without snapshots.

    Attributes:
        projections: get every event that is applied.
    """

    def __init__(self, projections: Projections, metrics: Metrics, keeper: LogKeeper | None = None) -> None:
        self.projections, self._metrics, self._keeper = projections, metrics, keeper
        self._store_ahead_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the time of a new event, estimated from the newest one.

        For expected ends of sub-epochs. A worker's presence depends on `WorkerStatus.silent_s`, which is
        elapsed time.
        """
        return time.monotonic() + self._store_ahead_s

    def apply(self, core: Core, events: Sequence[Event], *, is_news: bool = True) -> None:
        """Apply events.

        Args:
            is_news: False for events read from the past.

        Raises:
            UnreadableError: an event does not fit the log before it.
        """
        for event in events:
            try:
                core.apply(event, is_news=is_news)
            except Exception as cause:
                if core.state.seq < event.seq:
                    if isinstance(cause, IllegalEventError):
                        # Every controller would fail at this event.
                        raise UnreadableError.for_event(core.state.name, event.seq, str(cause)) from cause
                    raise
                # The log is valid: the fault is in this code.
                log.exception("the schedule of %s is computed again at event %d", core.state.name, event.seq)
                core.start_over()
            if is_news:
                self._log_event(core, event)
            self.projections.apply(core.state, event)
        if events and not is_news:
            # After the wall clock was set back, the log's times are ahead.
            self._store_ahead_s = max(self._store_ahead_s, events[-1].time - time.monotonic())

    def report_progress(self, core: Core, *, grows: bool) -> None:
        """Report a log's progress to the keeper, at most every 1,000 events of a growing log."""
        state = core.state
        if self._keeper is None or (grows and state.seq < self._keeper.known(state.name) + _REPORT_EVERY):
            return
        open_since = (
            task.attempts[-1].assigned for run in state.open_runs() for task in run.tasks.open.values()
        )
        live_before = min(open_since, default=self.now())
        progress = Progress(seq=state.seq, created=core.record.created, grows=grows, live_before=live_before)
        self._keeper.report(state.name, progress)

    def _log_event(self, core: Core, event: Event) -> None:
        self._store_ahead_s = event.time - time.monotonic()
        if isinstance(event, WorkerJoined | WorkerLost | WorkerRemoved | ReplicasChanged):
            return  # cluster events are reported once, when written (`controller.scaling.cluster_log`)
        self._metrics.happened(event)
        log.info("%s", line(event), extra=fields(core.state, event))
        if isinstance(event, SchedulerChanged) and event.scheduler not in POLICIES:
            log.warning(
                "no scheduler %r is known: %s dispatches by %s", event.scheduler, event.run, DEFAULT_POLICY
            )
