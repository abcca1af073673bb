"""Admission of runs from the queue: which experiments are open, and which runs the next leader must continue."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial

from cerebro.contract.rest import api
from cerebro.runtime.kvs.client import KvsClient
from cerebro.search.suggestions import installed_samplers
from cerebro.state import ExperimentState
from cerebro.state.snapshots import restored
from controller.decisions.core import Core
from controller.loop.fold_cache import FoldCache
from controller.loop.isolation import Isolation
from controller.loop.leadership import Leadership
from controller.loop.log_reading import LogReading
from controller.loop.open_runs import Experiments, Opened
from controller.projections.history import RunHistory
from controller.settings import Settings
from controller.sharing.arbiter import RunRef
from controller.sharing.rounds import Sharing


@dataclass
class Admission:
    """Opens the experiments of admitted runs and closes the others. Owned by the loop; not thread-safe.

    `Experiments.admitted` chooses the runs. This class reads the queue, and publishes the choice with the lease: after
    a crash the next leader must continue these runs.

    Attributes:
        num_queued: runs in the queue at the last read; `None` before.
    """

    kvs: KvsClient
    settings: Settings
    experiments: Experiments
    isolation: Isolation
    reading: LogReading
    leadership: Leadership
    history: RunHistory
    sharing: Sharing
    num_queued: int | None = None
    _cores: FoldCache = field(default_factory=lambda: FoldCache(installed_samplers=installed_samplers()))
    _read_at: float = -math.inf
    _waiting: tuple[api.QueueEntry, ...] = ()
    """Runs that wait for another one of their experiment."""
    _admitted: dict[str, tuple[str, ...]] | None = None
    """Admitted runs by experiment; `None` before the first admission of a term."""
    _published: api.Attended = field(default_factory=api.Attended)
    """Runs published by this or an earlier leader, at the last read of the queue."""

    def invalidate(self) -> None:
        """Mark the queue as outdated."""
        self._read_at = -math.inf

    def take_over(self) -> None:
        """Publish nothing until the first admission of a new term."""
        self._admitted = None
        self.invalidate()

    def update(self) -> bool:
        """Read the queue and admit runs, if it may have changed; return True if read.

        Raises:
            RetryableError, ConflictError: the store is unavailable, or another controller leads.
        """
        now = time.monotonic()
        if now - self._read_at < self.settings.tick_s:
            return False
        self._read_at = now
        opened, queue = self.experiments.opened, self.kvs.queued()
        self._published, self.num_queued = queue.attended, len(queue.runs)
        waiting = {
            RunRef(name, run)
            for name, each in [*opened.items()]
            for run in self.isolation.attempt(name, each.core.waiting, frozenset[str]())
        }
        self._waiting = tuple(each for each in queue.runs if RunRef(each.experiment, each.run) in waiting)
        admitted = self.experiments.admitted(queue, now, waiting)
        for name in [name for name in opened if name not in admitted]:
            self._close(name)
        for name, runs in admitted.items():
            self._open(name, runs)
        attended = self.experiments.attended()
        if attended != self._admitted:
            # Publish first: the next leader must continue these runs after a crash.
            self._admitted = attended
            self.leadership.renew()
        return True

    def attended(self) -> api.Attended | None:
        """Return the admitted runs with their claims, to be published; `None` before the first admission."""
        if self._admitted is None:
            return None
        overviews = self.experiments.overviews()
        runs = {RunRef(name, run.id): run for name, each in overviews.items() for run in each.runs}
        devices = {slot for each in overviews.values() for slot in each.to_train}
        found = self.sharing.attended(self._admitted, runs, len(devices), self._waiting, self._published)
        return found.model_copy(update={"most_workers": self.settings.most_workers})

    def _open(self, name: str, runs: tuple[str, ...]) -> None:
        opened = self.experiments.opened
        if name not in opened:
            core = self.isolation.attempt(name, partial(self._core, name), None)
            if core is None:
                return
            opened[name] = Opened(core=core, runs=runs)
        each = opened[name]
        each.runs = each.core.attended = runs
        known = each.core.state.runs
        # The queue may be ahead of the log, or a late command has queued a run.
        each.is_behind |= not all(run in known and known[run].is_open for run in runs)

    def _close(self, name: str) -> None:
        core = self.experiments.opened.pop(name).core
        self.reading.report_progress(core, grows=False)
        self._cores.keep(core)

    def _core(self, name: str) -> Core:
        self.history.open(name, self.leadership.newest_term)
        return self._cores.take(self.kvs.experiment(name), self._restored)

    def _restored(self, name: str) -> ExperimentState:
        state = restored(self.kvs, name)
        self.reading.projections.begin(state)
        return state
