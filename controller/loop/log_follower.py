"""The logs of the open experiments: read to their ends, then followed until there is news."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

from cerebro.contract.rest import api
from cerebro.errors import UnreadableClusterLogError, UnreadableError
from cerebro.runtime.kvs.client import KvsClient
from controller.loop.isolation import Isolation
from controller.loop.leadership import Leadership
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments, Opened, Overview
from controller.loop.step_writer import StepWriter

_READING_S = 0.1
"""Seconds of reading before other work continues: a long log takes minutes."""


@dataclass
class LogFollower:
    """Reads the logs of open experiments. Owned by the loop; not thread-safe.

    A faulty or unreadable log is isolated; the others continue.

    Args:
        stop: ends reading early.
    """

    kvs: KvsClient
    experiments: Experiments
    isolation: Isolation
    reading: LogReading
    leadership: Leadership
    writer: StepWriter
    stop: threading.Event
    _cluster: int = 0
    """Number of the newest notification about the cluster."""

    def read_on(self) -> bool:
        """Read logs on for a moment; return True if some are incomplete."""
        is_incomplete = False
        for name, each in self.experiments.behind():
            began = time.monotonic()
            while self.isolation.attempt(name, partial(self._read_page, each), False):
                if self.stop.is_set() or not self.leadership.keep():
                    return True
                if time.monotonic() - began > _READING_S and len(self.experiments.opened) > 1:
                    is_incomplete = True
                    break
        return is_incomplete

    def look_over(self) -> list[Overview]:
        """Return the overview of each completely read experiment."""
        for name, core in self.experiments.ready().items():
            overview = self.isolation.attempt(name, partial(Overview.of, core), None)
            if overview is not None:
                self.experiments.opened[name].overview = overview
        ready, overviews = self.experiments.ready(), self.experiments.overviews()
        for core in ready.values():
            self.reading.report_progress(core, grows=True)
        return [overviews[name] for name in ready]

    def wait(self, wait_s: float) -> bool:
        """Wait for events and apply them; return True if workers, size requests or the queue may have changed."""
        cores = self.experiments.ready()
        try:
            answer = self.kvs.watch(
                {name: core.state.seq for name, core in cores.items()}, self._cluster, wait_s
            )
        except UnreadableError as error:
            if error.experiment not in cores or isinstance(error, UnreadableClusterLogError):
                raise
            self.isolation.quarantine(error.experiment, error)
            return False
        for name, events in answer.events.items():
            self.isolation.attempt(name, partial(self.reading.apply, cores[name], events), None)
        has_changed = answer.cluster != self._cluster
        self._cluster = answer.cluster
        return has_changed

    def _read_page(self, each: Opened) -> bool:
        """Read one page of a log; return True if there is more."""
        core = each.core
        if events := self.kvs.events(core.state.name, core.state.seq):
            self.reading.apply(core, events, is_news=not each.is_new)
            return True
        each.is_behind = each.is_new = False
        for run in each.runs:
            if run not in core.state.runs:
                why = f"{run} is in the queue, but not in the log"
                raise UnreadableError.for_event(core.state.name, core.state.seq, why)
            if not core.state.runs[run].is_open:
                # A late command had queued it.
                self.writer.write(core, [api.Dequeue(run=run)])
        return False
