"""An experiment as this process follows it: the fold of its log, and what is kept beside the fold for the pages.

Views are functions of this and nothing else. Not thread-safe: `dispatcher.reading` lends it under a lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from cerebro.contract.events import (
    Event,
    LivePoint,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import ExperimentRecord
from cerebro.state import ExperimentState, Run, ScheduleNow, TaskKey, schedule_now
from cerebro.state.tasks import OPEN
from dispatcher.live import LiveSeries
from dispatcher.pace import IDLE, Pace, Pacemaker
from dispatcher.tables import ModelTable

_TASK_EVENTS = (TaskAssigned, TaskStarted, TaskCommitted, TaskFailed, TaskRevoked)
_RUN_EVENTS = (
    *(RunStarted, RunPaused, RunResumed, RunStopRequested, RunFinished),
    *(ModelStopRequested, ModelResumed, ModelRetried),
)


_SCHEDULE_SHARE = 0.05
"""Of the time, at most, that is spent on finding out how well a run is scheduled: it looks at every unit."""


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    found: ScheduleNow | None
    seq: int
    at: float
    took_s: float

    @property
    def is_growing(self) -> bool:
        return self.found is None or self.found.is_growing


class Followed:
    """One experiment.

    Attributes:
        record: what it is.
        state: the fold of its log as far as it is read.
        live: its live points.
        is_complete: whether the log was read to its end.
    """

    def __init__(self, record: ExperimentRecord) -> None:
        self.record = record
        self.state = ExperimentState(name=record.name)
        self.live = LiveSeries()
        self.is_complete = False
        self._tables: dict[str, ModelTable] = {}
        self._pacemaker = Pacemaker()
        self._pace: tuple[tuple[int, int, float], Pace] | None = None
        self._schedules: dict[str, _Schedule] = {}

    @property
    def version(self) -> tuple[float, int, int, bool]:
        """Differs whenever anything in here does."""
        return self.record.created, self.state.seq, self.live.seq, self.is_complete

    def apply(self, events: Iterable[Event]) -> None:
        """Fold the next events.

        Raises:
            IllegalEventError: the log does not fit this program.
        """
        for event in events:
            started = self._started(event) if isinstance(event, TaskCommitted) else 0.0
            self.state.apply(event)
            if isinstance(event, _TASK_EVENTS):
                self._task(event, started)
            elif isinstance(event, _RUN_EVENTS) and event.run in self._tables:
                if isinstance(event, ModelStopRequested):
                    self._tables[event.run].change(event.model)
                else:
                    self._tables[event.run].change_all()

    def take(self, points: Iterable[LivePoint]) -> None:
        """Take in the next live points."""
        self.live.take(points)
        # The log may be ahead of the points: what has ended would stay for ever.
        for key, point in list(self.live.newest.items()):
            run = self.state.runs.get(key.partition("/")[0])
            task = run.task(TaskKey.parse(key)) if run else None
            if task is not None and task.state not in OPEN and task.attempt >= point.attempt:
                self.live.forget(key)

    def fit(self, wanted: str = "") -> Run | None:
        """The planned fit run of that id; the newest one if there is none of that id; `None` without any."""
        chosen = self.state.runs.get(wanted)
        if chosen is not None and chosen.models:
            return chosen
        return next((run for run in reversed(self.state.runs.values()) if run.models), None)

    def fits(self) -> tuple[str, ...]:
        """Ids of planned fit runs, oldest first."""
        return tuple(run.id for run in self.state.runs.values() if run.models)

    def table(self, run: Run) -> ModelTable:
        """The models of a planned fit run as rows."""
        if run.id not in self._tables:
            self._tables[run.id] = ModelTable(run)
        return self._tables[run.id]

    def progress(self, run: Run) -> tuple[int, int]:
        """Tasks committed, of so many; see `Run.progress`."""
        return self.table(run).progress() if run.models else run.progress()

    def pace(self, now: float) -> Pace:
        """Of the run in progress."""
        run = self.state.active_run()
        if run is None:
            return IDLE
        key = (self.state.seq, self.live.seq, now)
        if self._pace is None or self._pace[0] != key:
            table = self.table(run) if run.models else None
            self._pace = key, self._pacemaker.pace(run, table, now, self.live_rows)
        return self._pace[1]

    def schedule_now(self, run: Run, now: float) -> ScheduleNow | None:
        """How a fit run has been scheduled up to `now`; of a long run it may be some seconds old."""
        known = self._schedules.get(run.id)
        if known is not None and (known.seq == self.state.seq and not known.is_growing):
            return known.found
        if known is not None and abs(now - known.at) < known.took_s / _SCHEDULE_SHARE:
            return known.found
        began = time.perf_counter()
        found = schedule_now(self.state, run, now)
        self._schedules[run.id] = _Schedule(
            found=found, seq=self.state.seq, at=now, took_s=time.perf_counter() - began
        )
        return found

    def live_rows(self, task: str) -> int:
        """Rows that the open attempt of a task has done, as it last said."""
        point = self.live.newest.get(task)
        return point.rows if point else 0

    def _started(self, event: TaskCommitted) -> float:
        """When the attempt began; asked before the commit is folded: a committed unit leaves the run's tasks."""
        run = self.state.runs.get(event.task.partition("/")[0])
        task = run.open.get(event.task) if run else None
        return task.attempts[-1].started if task else 0.0

    def _task(
        self, event: TaskAssigned | TaskStarted | TaskCommitted | TaskFailed | TaskRevoked, started: float
    ) -> None:
        key = TaskKey.parse(event.task)
        if key.model and key.run in self._tables:
            self._tables[key.run].change(key.model)
        if isinstance(event, TaskAssigned | TaskStarted):
            return
        self.live.forget(event.task)
        if isinstance(event, TaskCommitted) and started:
            self._pacemaker.commit(key.run, started=started, ended=event.time, rows=event.result.rows)
