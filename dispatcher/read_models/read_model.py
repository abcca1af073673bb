"""The read model of an experiment: the fold of its log, and derived data for pages.

Views are functions of the read model only. It reads nothing itself and is not thread-safe:
`dispatcher.read_models.reader` adds events and live points, and gives views access under a lock.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cerebro.contract.events import (
    Event,
    LivePoint,
    ModelChanged,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    ModelStopRequested,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SearchDecided,
    TagsChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.figures import tests_of
from cerebro.state import ExperimentState, Model, Run, ScheduleNow, TaskKey, schedule_now
from cerebro.state.reports.throughput import IDLE, Throughput, ThroughputMeter
from cerebro.state.runs.rungs import Rung, SearchReports
from cerebro.state.runs.rungs import rungs as rungs_of
from cerebro.state.tasks.task import OPEN
from dispatcher.read_models.columns import Columns
from dispatcher.read_models.live_series import LiveSeries
from dispatcher.read_models.model_table import ModelTable
from dispatcher.read_models.tested_models import TestedModels

_TASK_EVENTS = (TaskAssigned, TaskStarted, TaskCommitted, TaskFailed, TaskRevoked)
_RUN_EVENTS = (
    *(RunStarted, RunPaused, RunResumed, RunStopRequested, RunFinished),
    *(
        ModelStopRequested,
        ModelResumed,
        ModelRetried,
        ModelsAdded,
        ModelExtended,
        ModelChanged,
        SearchDecided,
        TagsChanged,
    ),
)


TICK_S = 15.0
"""Seconds between changes of an open run's pages without events, because throughput and estimates change."""
_POINT_WEIGHT = 1 / 8
"""Memory of a live point relative to an event."""
_SCHEDULE_SHARE = 0.002
"""Maximum fraction of time for computing schedule quality, because it visits every sub-epoch."""


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    found: ScheduleNow | None
    seq: int
    ended: float
    """End of the run; 0 while it was open."""
    at: float
    took_s: float

    @property
    def is_final(self) -> bool:
        return self.found is not None and not self.found.is_growing

    def can_recompute(self, run: Run, now: float) -> bool:
        """True immediately after the run ends or resumes, else at a limited rate."""
        return run.clock.ended != self.ended or abs(now - self.at) >= self.took_s / _SCHEDULE_SHARE


class ReadModel:
    """One experiment.

    Args:
        record: its record.
        state: fold of the beginning of its log, which the read model continues and owns.

    Attributes:
        record: its record.
        state: fold of the events read.
        live: its live points.
        is_complete: True if the whole log was read.
        is_open: True if a run is in progress, so throughput and estimates change without events.
    """

    def __init__(self, record: ExperimentRecord, state: ExperimentState | None = None) -> None:
        self.record = record
        self.state = state or ExperimentState(name=record.name)
        self.live = LiveSeries()
        self.is_complete = False
        self.is_open = False
        self._tables: dict[str, ModelTable] = {}
        self._tested: dict[str, TestedModels] = {}
        self._rung_states: dict[str, SearchReports] = {}
        self._throughput = ThroughputMeter()
        self._throughput.recall(self.state)
        self._schedules: dict[str, _Schedule] = {}

    def version(self, now: float) -> tuple[object, ...]:
        """Return a value that changes whenever views at `now` change. Callable without the lock."""
        tick = now // TICK_S if self.is_open else 0.0
        # Schedules older than the log, which views still show.
        behind = tuple(
            (run, known.seq)
            for run, known in list(self._schedules.items())
            if known.seq != self.state.seq and not known.can_recompute(self.state.runs[run], now)
        )
        return self.record.created, self.state.seq, self.live.seq, self.is_complete, tick, behind

    @property
    def weight(self) -> float:
        """Memory use, in events."""
        return self.state.seq + len(self.live) * _POINT_WEIGHT

    def apply(self, events: Iterable[Event]) -> None:
        """Fold the next events.

        Raises:
            UnreadableError: this version cannot read the log.
        """
        for event in events:
            try:
                self._throughput.observe(self.state, event)
                self.state.apply(event)
            except IllegalEventError as cause:
                raise UnreadableError.for_event(self.record.name, event.seq, str(cause)) from cause
            if isinstance(event, _TASK_EVENTS):
                self._task(event)
            elif isinstance(event, _RUN_EVENTS) and event.run in self._tables:
                if isinstance(event, ModelStopRequested | ModelChanged | TagsChanged):
                    self._tables[event.run].invalidate(event.model)
                elif isinstance(event, SearchDecided) and event.finish is None:
                    self._tables[event.run].invalidate(*event.stop, *(each.model for each in event.extend))
                else:
                    self._tables[event.run].invalidate_all()
        self.is_open = bool(self.state.open_runs())

    def add_points(self, points: Iterable[LivePoint]) -> None:
        """Add live points."""
        points = tuple(points)
        self.live.add(points)
        # The log may be ahead of the points. Points of ended tasks would stay forever.
        for key in {point.task for point in points}:
            point = self.live.newest[key]
            run = self.state.runs.get(key.partition("/")[0])
            task = run.task(TaskKey.parse(key)) if run else None
            if task is not None and task.state not in OPEN and task.attempt >= point.attempt:
                self.live.forget(key)

    def fit(self, wanted: str = "") -> Run | None:
        """Return the planned fit run with that id, else the newest; `None` without any."""
        chosen = self.state.runs.get(wanted)
        if chosen is not None and chosen.is_planned_fit:
            return chosen
        return next((run for run in reversed(self.state.runs.values()) if run.is_planned_fit), None)

    def fits(self) -> tuple[str, ...]:
        """Return ids of planned fit runs, oldest first."""
        return tuple(run.id for run in self.state.runs.values() if run.is_planned_fit)

    def table(self, run: Run) -> ModelTable:
        """Return the model table of a planned fit run."""
        if run.id not in self._tables:
            self._tables[run.id] = ModelTable(run)
        return self._tables[run.id]

    def columns(self, run: Run) -> Columns:
        """Return the columns of a planned fit run's models, with values of tests on the newest tested data set."""
        metric, test_runs = run.fit_request.metric, list(tests_of(self.state, run))
        datasets = [test.plan.dataset for test in test_runs if test.plan]
        tests = [
            self.tested(test).values(metric)
            for test, dataset in zip(test_runs, datasets, strict=True)
            if dataset == datasets[-1]
        ]
        return replace(self.table(run).columns(), tests=ChainMap(*reversed(tests)))

    def tested(self, run: Run) -> TestedModels:
        """Return the results of a planned test run."""
        if run.id not in self._tested:
            self._tested[run.id] = TestedModels(run)
        return self._tested[run.id]

    def best_of(self, run: Run) -> Model | None:
        """Return the best model of a planned fit run."""
        row = self.table(run).best()
        return run.models[row.id] if row else None

    def rungs(self, run: Run) -> list[Rung]:
        """Return the rungs of a fit run's search, highest first; an empty list without a search."""
        return rungs_of(run, self._rung_states.setdefault(run.id, SearchReports()))

    def progress(self, run: Run) -> tuple[int, int]:
        """Return committed and total tasks (see `Run.progress`). A total of 0 means unknown."""
        return self.table(run).progress() if run.is_planned_fit else run.progress()

    def throughput(self, now: float, run: Run | None = None) -> Throughput:
        """Return the throughput of a run, by default of `ExperimentState.active_run`."""
        run = run or self.state.active_run()
        if run is None or not run.is_open:
            return IDLE
        sub_epochs = self.table(run) if run.is_planned_fit else None
        return self._throughput.throughput(run, now, sub_epochs=sub_epochs, newest=self.live.newest.get)

    def schedule_now(self, run: Run, now: float) -> ScheduleNow | None:
        """Return the schedule quality of a fit run at `now`; of a long run, a cached one (`_SCHEDULE_SHARE`)."""
        known, seq = self._schedules.get(run.id), self.state.seq
        if known is not None:
            is_news = known.seq != seq or not known.is_final
            if not is_news or not known.can_recompute(run, now):
                return known.found
        began = time.perf_counter()
        found = schedule_now(self.state, run, now)
        self._schedules[run.id] = _Schedule(
            found=found, seq=seq, ended=run.clock.ended, at=now, took_s=time.perf_counter() - began
        )
        return found

    def _task(self, event: TaskAssigned | TaskStarted | TaskCommitted | TaskFailed | TaskRevoked) -> None:
        key = TaskKey.parse(event.task)
        if key.model and key.run in self._tables:
            self._tables[key.run].invalidate(key.model)
        if key.model and key.run in self._tested:
            self._tested[key.run].invalidate(key.model)
        if isinstance(event, TaskAssigned | TaskStarted):
            return
        self.live.forget(event.task)
