"""Isolation of faults: a failing experiment is quarantined or paused, and the others continue."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cerebro.contract.events import Event
from cerebro.contract.records import Unreadable
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, RetryableError, UnreadableClusterLogError, UnreadableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import ExperimentState, repair_state
from cerebro.state.snapshots import restored
from controller.decisions.preemption import revoke_task
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments

log = logging.getLogger(__name__)

_QUARANTINED = "the experiment's log cannot be read any further, so it is quarantined"

_T = TypeVar("_T")


class Isolation:
    """Runs actions for one experiment at a time. Owned by the loop; not thread-safe.

    Args:
        term: returns the term, renewing the leadership if needed; 0 without it.
        skip: called with an experiment that is no longer active.
    """

    def __init__(
        self,
        kvs: KvsClient,
        experiments: Experiments,
        reading: LogReading,
        *,
        holder: str,
        term: Callable[[], int],
        skip: Callable[[str], None],
    ) -> None:
        self._kvs, self._experiments, self._reading = kvs, experiments, reading
        self._holder, self._term, self._skip = holder, term, skip

    def attempt(self, experiment: str, act: Callable[[], _T], otherwise: _T) -> _T:
        """Run an action for an experiment; return `otherwise` if the experiment fails.

        An unreadable experiment is quarantined; one with a fault is paused for a while.

        Raises:
            RetryableError, ConflictError, UnreadableClusterLogError, MemoryError: not caused by the
                experiment.
        """
        try:
            return act()
        except (RetryableError, ConflictError, UnreadableClusterLogError, MemoryError):
            raise
        except UnreadableError as error:
            self.quarantine(experiment, error)
        except Exception:
            log.exception("experiment %s has a fault", experiment)
            self._set_aside(experiment)
        return otherwise

    def quarantine(self, experiment: str, error: UnreadableError) -> None:
        """Quarantine an unreadable experiment and free its workers."""
        log.exception("experiment %s is quarantined: %s", experiment, error)
        each = self._experiments.opened.pop(experiment, None)
        self._skip(experiment)
        if each is not None:
            with contextlib.suppress(UnreadableError):
                self._reading.apply(each.core, error.readable, is_news=False)
            state = repair_state(
                each.core.state, partial(self._events, experiment), partial(restored, self._kvs)
            )
            self._revoke_open_tasks(state)
        why = Unreadable(seq=error.seq, reason=error.reason or str(error), by=self._holder, time=time.time())
        self._kvs.quarantine(experiment, why, self._term())

    def _set_aside(self, experiment: str) -> None:
        self._skip(experiment)
        delay_s = self._experiments.set_aside(experiment, time.monotonic())
        log.warning("experiment %s is not retried for %g s; other experiments continue", experiment, delay_s)

    def _events(self, experiment: str, after: int) -> tuple[Event, ...]:
        """Read events, which may take many calls, and keep the leadership."""
        self._term()
        return self._kvs.events(experiment, after)

    def _revoke_open_tasks(self, state: ExperimentState) -> None:
        """Revoke every attempt known to be open."""
        tasks = [task for run in state.runs.values() if run.is_open for task in run.tasks.open.values()]
        steps = [revoke_task(task, _QUARANTINED, force=True) for task in tasks]
        if steps:
            request = api.DecideRequest(term=self._term(), after=state.seq, steps=tuple(steps))
            with contextlib.suppress(UnreadableError):  # the answer has it too
                self._kvs.decide(state.name, request)
