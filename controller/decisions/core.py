"""The scheduling core of one experiment: events in, steps out. No I/O, no clock, no unseeded random numbers.

The same object runs live, after a crash and in simulations. Past events are folded only into the experiment
state. The dispatch state is built from it at the first decision, which is much cheaper than folding both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from cerebro.contract.events import Event, LocatorsChanged, TaskCommitted
from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.rest.api import YIELD_S
from cerebro.state import ExperimentState, Run, RunState, TaskKey
from controller.decisions.decide import Step, decide
from controller.decisions.device_ends import due_s
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions.memory_needs import to_grow
from controller.exclusions.model_exclusions import update_memory
from controller.projections.priors import Priors
from controller.projections.sub_epoch_times import SubEpochTimes
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from controller.sources.pruning import Pruning
from controller.sources.search import ALL_SAMPLERS, Searching

_SOON_S = 0.001
"""Minimum delay before the next wake-up; zero would busy-loop."""


class Core:
    """The state of one experiment and its next steps. Not thread-safe.

    Attributes:
        record: the experiment's record.
        state: the fold of its log.
        attended: ids of the runs that may be worked on; `None` for all.

    Args:
        installed_samplers: kinds of samplers that can run in the controller; workers run the others.
        state: a fold of the log's beginning. The core owns it.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        *,
        installed_samplers: Collection[str] = ALL_SAMPLERS,
        state: ExperimentState | None = None,
    ) -> None:
        self.record, self._installed_samplers = record, installed_samplers
        self.state = state or ExperimentState(name=record.name)
        self.attended: Collection[str] | None = None
        self._times: SubEpochTimes | None = None
        self._priors: tuple[str, Priors | None] = ("", None)
        """A run id, and the priors that earlier runs give it."""
        self._fit: FitDispatch | None = None
        self._searching: Searching | None = None
        self._pruning: Pruning | None = None
        self.views: Mapping[str, WorkerView] = {}
        """The workers' views at the newest decision."""

    @property
    def fit(self) -> FitDispatch | None:
        """Dispatch state of the active fit run, or `None`."""
        if self._fit is None:
            run = self.state.active_run()
            if run is None or not run.models:
                return None
            self._fit = FitDispatch.of(self.state, run, self._times_of(run))
        self._fit.observe_holders(self.state)
        return self._fit

    def apply(self, event: Event, *, is_news: bool = True) -> None:
        """Apply one event.

        Args:
            is_news: True if a decision may follow before the next event.

        Raises:
            IllegalEventError: the event does not fit; see `ExperimentState.apply`. Any other error comes from
                the derived objects: see `start_over`.
        """
        self.state.apply(event)
        if isinstance(event, LocatorsChanged):
            self.record = self.record.model_copy(update={"locators": event.locators})
        elif isinstance(event, TaskCommitted):
            run = self.state.runs[TaskKey.parse(event.task).run]
            if self._times is not None and self._times.run == run.id:
                self._times.apply(run, event)
            elif run.models:
                self._times = self._new_times(run)
        if self._fit is not None:
            active = self.state.active_run()
            is_of_it = is_news and active is not None and active.id == self._fit.run
            if is_of_it and self._fit.knows(event):
                self._fit.apply(self.state, event)
            else:
                self._fit = None

    def _times_of(self, run: Run) -> SubEpochTimes:
        if self._times is None or self._times.run != run.id:
            self._times = self._new_times(run)
        return self._times

    def _new_times(self, run: Run) -> SubEpochTimes:
        of, priors = self._priors
        return SubEpochTimes.of(run, priors if of == run.id else None)

    def expects(self, run: Run) -> bool:
        """True if `expect` was called for this run."""
        return self._priors[0] == run.id

    def expect(self, run: Run, priors: Priors | None) -> None:
        """Use the priors of earlier runs in decisions on a run; `None` if they give none."""
        self._priors = run.id, priors
        if priors:
            self._times = self._fit = None

    def slowness(self) -> dict[str, tuple[float, int]]:
        """Return the slowness of each worker in the newest fit run, as `Estimates.slowness`.

        The result has no entries before the first commit.
        """
        if self._times is None:
            return {}
        return {name: self._times.estimates.slowness(name) for name in self.state.workers}

    def start_over(self) -> None:
        """Discard all objects derived from the state. They are rebuilt on demand."""
        self._times = self._fit = self._searching = self._pruning = None

    def wake_s(self, now: float) -> float:
        """Return the seconds until a decision may be due without an event, or infinity.

        Reasons are a sub-epoch that ends soon, an overdue release, and a model that has waited long enough
        for a worker.
        """
        revoke_s, fit = self._revoke_in_s(now), self.fit
        search = self._searching
        run = self.state.runs.get(search.run) if search is not None else None
        # The search of a paused or ended run gets no events.
        is_running = run is not None and run.state is RunState.RUNNING
        if search is not None and run is not None and is_running and search.is_behind(run):
            revoke_s = _SOON_S
        if fit is None:
            return revoke_s
        waits = (until - now for until in fit.retries.interrupted.values() if until > now)
        # If models differ in priority, a queued sub-epoch may lose its slot to another one.
        most = QUEUE_DEPTH if fit.dispatch_state.has_priorities else 1
        slots = (
            (worker, device)
            for worker in self.state.workers.values()
            if worker.is_alive and worker.open_tasks
            for device in range(worker.devices)
            if 1 <= len(worker.tasks_in(device)) <= most
        )
        dues = (due_s(fit, worker, device, now) for worker, device in slots)
        return min((revoke_s, *filter(None, dues), *waits))

    def _revoke_in_s(self, now: float) -> float:
        """Return the seconds until a requested release may be revoked; infinity without requests."""
        requests = (
            task.attempts[-1].release_requested_at
            for run in self.state.open_runs()
            for task in run.tasks.open.values()
        )
        dues = (at + YIELD_S for at in requests if at is not None)
        # A sub-epoch that is preempted for another run is not revoked, however late it is.
        return min((max(_SOON_S, due - now) for due in dues if due > now), default=math.inf)

    def open_runs(self) -> list[Run]:
        """Return the attended runs that wait for no other run, oldest first."""
        return [run for run in self.state.going_on() if self.attended is None or run.id in self.attended]

    def waiting(self) -> frozenset[str]:
        """Return ids of open runs that wait for another run of the experiment."""
        going_on = {run.id for run in self.state.going_on()}
        return frozenset(run.id for run in self.state.open_runs() if run.id not in going_on)

    def fit_of(self, run: Run) -> FitDispatch | None:
        """Return the dispatch state of an active fit run, `None` for any other run."""
        return self.fit if run.models else None

    def search_of(self, run: Run) -> Searching | None:
        """Return the object that decides on a search's models; it reads new events when called."""
        if run.search is None:
            return None
        if self._searching is None or self._searching.run != run.id:
            self._searching = Searching(run, self._installed_samplers)
        return self._searching

    def _pruning_of(self, run: Run) -> Pruning | None:
        if run.keep is None:
            return None
        if self._pruning is None or self._pruning.run != run.id:
            self._pruning = Pruning(run)
        return self._pruning

    def to_grow(self, snapshot: ClusterSnapshot, run: Run) -> set[str]:
        """Return the workers that need more memory for tasks of an active run."""
        return (
            to_grow(self.state, run, snapshot) if run.tasks.exhausted and snapshot.growth.workers else set()
        )

    def decide(self, snapshot: ClusterSnapshot, run: Run | None = None) -> list[Step]:
        """Return the steps to take now.

        Args:
            run: one of `open_runs`; the first by default.
        """
        run = run or next(iter(self.open_runs()), None)
        if run is None:
            return []
        self.views, fit = snapshot.workers, self.fit
        if fit is not None:
            update_memory(self.state.runs[fit.run], fit, self.views)
        search, pruning = self.search_of(run), self._pruning_of(run)
        return decide(self.record, self.state, run, snapshot, fit, search=search, pruning=pruning)
