"""The controller's core of one experiment: events in, steps out. No I/O, no clock, no generator that is not seeded.

Live, after a crash and in simulations it is the same object: a fold of the log with one question to ask of it. What is
read of the past is folded into the state alone; the dispatch state is made from that once there is something to decide,
at a fraction of what it takes to keep it in step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from cerebro.contract.api import YIELD_S
from cerebro.contract.events import Event, LocatorsChanged, TaskCommitted
from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.state import ExperimentState, Run, RunState, TaskKey
from controller.decisions.decide import Step, decide
from controller.decisions.device_ends import due_s
from controller.decisions.fit_dispatch import FitDispatch
from controller.exclusions import memory_retries
from controller.exclusions.memory_needs import to_grow
from controller.projections.priors import Priors
from controller.projections.sub_epoch_times import SubEpochTimes
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from controller.sources.pruning import Pruning
from controller.sources.search import EVERYWHERE, Searching

_SOON_S = 0.001
"""Not at once, or nobody would wait."""


class Core:
    """Everything known of an experiment, and what to do next. Not thread-safe.

    Attributes:
        record: what the experiment is.
        state: the fold of its log.
        attended: ids of the runs that may be worked on; `None`: all.

    Args:
        drawable: kinds of samplers that can draw beside the loop; workers draw by others.
        state: a fold of the log's beginning, to go on from; owned from then on.
    """

    def __init__(
        self,
        record: ExperimentRecord,
        *,
        drawable: Collection[str] = EVERYWHERE,
        state: ExperimentState | None = None,
    ) -> None:
        self.record, self._drawable = record, drawable
        self.state = state or ExperimentState(name=record.name)
        self.attended: Collection[str] | None = None
        self._times: SubEpochTimes | None = None
        self._priors: tuple[str, Priors | None] = ("", None)
        """Of which run they are, and what earlier runs have shown."""
        self._fit: FitDispatch | None = None
        self._searching: Searching | None = None
        self._pruning: Pruning | None = None
        self.views: Mapping[str, WorkerView] = {}
        """The workers as they were at the newest decision."""

    @property
    def fit(self) -> FitDispatch | None:
        """Of the fit run that is worked on, `None` while there is none."""
        if self._fit is None:
            run = self.state.active_run()  # an ETL or fit run, if one is open
            if run is None or not run.models:
                return None
            self._fit = FitDispatch.of(self.state, run, self._times_of(run))
        self._fit.see_holders(self.state)
        return self._fit

    def apply(self, event: Event, *, is_news: bool = True) -> None:
        """Take one event in.

        Args:
            is_news: whether there may be something to decide on it, before the next event.

        Raises:
            IllegalEventError: the event does not fit; see `ExperimentState.apply`. Any other error is one of what is
                kept beside the state, see `start_over`.
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
        """Whether it was told what earlier runs say of this one."""
        return self._priors[0] == run.id

    def expect(self, run: Run, priors: Priors | None) -> None:
        """Have decisions on a run rest on what earlier runs have shown, too; `None`: they say nothing."""
        self._priors = run.id, priors
        if priors:
            self._times = self._fit = None

    def slowness(self) -> dict[str, tuple[float, int]]:
        """What sub-epochs of the newest fit run have shown of workers, as `Estimates.slowness`; none before one was
        committed."""
        if self._times is None:
            return {}
        return {name: self._times.estimates.slowness(name) for name in self.state.workers}

    def start_over(self) -> None:
        """Make what is kept beside the state anew, from the state, when it is asked for."""
        self._times = self._fit = self._searching = self._pruning = None

    def wake_s(self, now: float) -> float:
        """Seconds until there is something to decide although nothing happens: a device is about to end its sub-epoch,
        a worker has not given back what it was asked for, a model has waited for one long enough. Infinite if there is
        nothing of the kind."""
        revoke_s, fit = self._revoke_in_s(now), self.fit
        search = self._searching
        run = self.state.runs.get(search.run) if search is not None else None
        # A run that is paused or has ended is told nothing.
        is_told = run is not None and run.state is RunState.RUNNING
        if search is not None and run is not None and is_told and search.is_behind(run):
            revoke_s = _SOON_S
        if fit is None:
            return revoke_s
        waits = (until - now for until in fit.interrupted.values() if until > now)
        # Where models differ in priority, what is queued may have to give its place to another one.
        most = QUEUE_DEPTH if fit.dispatch_state.has_priorities else 1
        places = (
            (worker, device)
            for worker in self.state.workers.values()
            if worker.is_alive and worker.open_tasks
            for device in range(worker.devices)
            if 1 <= len(worker.in_lane(device)) <= most
        )
        dues = (due_s(fit, worker, device, now) for worker, device in places)
        return min((revoke_s, *filter(None, dues), *waits))

    def _revoke_in_s(self, now: float) -> float:
        """Seconds until an attempt that was asked for may be revoked; infinite while there is none."""
        asked = (task.attempts[-1].asked for run in self.state.open_runs() for task in run.open.values())
        return min((max(_SOON_S, at + YIELD_S - now) for at in asked if at is not None), default=math.inf)

    def open_runs(self) -> list[Run]:
        """Runs that are worked on, oldest first: those that wait for no other run."""
        return [run for run in self.state.going_on() if self.attended is None or run.id in self.attended]

    def waiting(self) -> frozenset[str]:
        """Ids of open runs that wait for another one of the experiment."""
        going_on = {run.id for run in self.state.going_on()}
        return frozenset(run.id for run in self.state.open_runs() if run.id not in going_on)

    def fit_of(self, run: Run) -> FitDispatch | None:
        """The dispatch state of a fit run that is worked on, `None` for any other run."""
        return self.fit if run.models else None

    def search_of(self, run: Run) -> Searching | None:
        """What decides on the models of a run that searches; it is told what the log says when it is asked."""
        if run.search is None:
            return None
        if self._searching is None or self._searching.run != run.id:
            self._searching = Searching(run, self._drawable)
        return self._searching

    def _pruning_of(self, run: Run) -> Pruning | None:
        if run.keep is None:
            return None
        if self._pruning is None or self._pruning.run != run.id:
            self._pruning = Pruning(run)
        return self._pruning

    def to_grow(self, snapshot: ClusterSnapshot, run: Run) -> set[str]:
        """Workers that are to be given more memory, for tasks of a run that is worked on."""
        return to_grow(self.state, run, snapshot) if run.exhausted and snapshot.growth.workers else set()

    def decide(self, snapshot: ClusterSnapshot, run: Run | None = None) -> list[Step]:
        """The steps to take now; empty when there is nothing to do but wait.

        Args:
            run: one of `open_runs`; the first of them if it is left out.
        """
        run = run or next(iter(self.open_runs()), None)
        if run is None:
            return []
        self.views, fit = snapshot.workers, self.fit
        if fit is not None:
            memory_retries.see(self.state.runs[fit.run], fit, self.views)
        search, pruning = self.search_of(run), self._pruning_of(run)
        return decide(self.record, self.state, run, snapshot, fit, search=search, pruning=pruning)
