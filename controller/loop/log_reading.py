"""Events taken into the folds of experiments, and told: to whoever observes, to metrics, to the service's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

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
from cerebro.state import ExperimentState
from controller.decisions.core import Core
from controller.loop.event_logging import fields, line
from controller.metrics import Metrics

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Is shown each event; must return at once."""

    def observe(self, state: ExperimentState, event: Event) -> None:
        """`event` was applied to `state`."""
        ...

    def begin(self, state: ExperimentState) -> None:
        """A log is read on from here: what came before was shown to an observer of an earlier life."""
        ...

    def forget(self, experiment: str) -> None:
        """The experiment is being deleted: nothing is to be written for it any more, until one of its name is new."""
        ...


class LogReading:
    """Belongs to the loop; not thread-safe."""

    def __init__(self, observers: Sequence[Observer], metrics: Metrics) -> None:
        self._observers, self._metrics = observers, metrics
        self._store_ahead_s = time.time() - time.monotonic()

    def now(self) -> float:
        """The time that an event would have now, as far as the newest one tells: for when a sub-epoch is expected to
        end. Whether a worker is there is told by `WorkerStatus.silent_s`, which counts elapsed time."""
        return time.monotonic() + self._store_ahead_s

    def apply(self, core: Core, events: Sequence[Event], *, is_news: bool = True) -> None:
        """Take events in.

        Args:
            is_news: they happened just now; else they are read of the past.

        Raises:
            UnreadableError: one does not fit the log before it.
        """
        for event in events:
            try:
                core.apply(event, is_news=is_news)
            except Exception as cause:
                if core.state.seq < event.seq:
                    if isinstance(cause, IllegalEventError):
                        # It will be so the next time, for every controller that starts.
                        raise UnreadableError.for_event(core.state.name, event.seq, str(cause)) from cause
                    raise
                # The log is sound: the error is ours.
                log.exception("the schedule of %s is made anew at event %d", core.state.name, event.seq)
                core.start_over()
            if is_news:
                self._tell(core, event)
            for observer in self._observers:
                observer.observe(core.state, event)
        if events and not is_news:
            # After the wall clock was set back, the log's times are ahead of it.
            self._store_ahead_s = max(self._store_ahead_s, events[-1].time - time.monotonic())

    def _tell(self, core: Core, event: Event) -> None:
        self._store_ahead_s = event.time - time.monotonic()
        if isinstance(event, WorkerJoined | WorkerLost | WorkerRemoved | ReplicasChanged):
            return  # of the cluster: it was told when it was written (`controller.scaling.cluster_log`), once
        self._metrics.happened(event)
        log.info("%s", line(event), extra=fields(core.state, event))
        if isinstance(event, SchedulerChanged) and event.scheduler not in POLICIES:
            log.warning(
                "no scheduler %r is known: %s dispatches by %s", event.scheduler, event.run, DEFAULT_POLICY
            )
