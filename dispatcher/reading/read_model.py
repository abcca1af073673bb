"""An experiment as this process follows it: the fold of its log, and what is kept beside the fold for the pages.

Views are functions of this and nothing else. Not thread-safe: `dispatcher.reading.reader` lends it under a lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

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
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import IllegalEventError, UnreadableError
from cerebro.state import ExperimentState, Model, Run, ScheduleNow, TaskKey, schedule_now
from cerebro.state.rungs import Rung, Told
from cerebro.state.rungs import rungs as rungs_of
from cerebro.state.tasks import OPEN
from cerebro.state.throughput import IDLE, Throughput, ThroughputMeter
from dispatcher.reading.live_series import LiveSeries
from dispatcher.reading.model_table import ModelTable

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
    ),
)


TICK_S = 15.0
"""While a run is open its pages are made anew this often though nothing happens: throughput falls, ends move away."""
_POINT_WEIGHT = 1 / 8
"""A live point takes so much of an event's memory."""
_SCHEDULE_SHARE = 0.002
"""Of the time, at most, that is spent on finding out how well a run is scheduled: it looks at every sub-epoch."""


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    found: ScheduleNow | None
    seq: int
    ended: float
    """When the run ended; 0 while it was open."""
    at: float
    took_s: float

    @property
    def is_final(self) -> bool:
        return self.found is not None and not self.found.is_growing

    def may_be_made_anew(self, run: Run, now: float) -> bool:
        """At once when the run has ended or goes on again: its last numbers stay. Else not too often."""
        return run.ended != self.ended or abs(now - self.at) >= self.took_s / _SCHEDULE_SHARE


class ReadModel:
    """One experiment.

    Args:
        record: what it is.
        state: a fold of the beginning of its log, to go on from; owned from then on.

    Attributes:
        record: what it is.
        state: the fold of its log as far as it is read.
        live: its live points.
        is_complete: whether the log was read to its end.
        is_open: whether a run is in progress, so that throughput and time left change though nothing happens.
    """

    def __init__(self, record: ExperimentRecord, state: ExperimentState | None = None) -> None:
        self.record = record
        self.state = state or ExperimentState(name=record.name)
        self.live = LiveSeries()
        self.is_complete = False
        self.is_open = False
        self._tables: dict[str, ModelTable] = {}
        self._told: dict[str, Told] = {}
        self._throughput = ThroughputMeter()
        self._throughput.recall(self.state)
        self._schedules: dict[str, _Schedule] = {}

    def version(self, now: float) -> tuple[object, ...]:
        """Differs whenever what is shown of this at `now` does; asked without the lock."""
        tick = now // TICK_S if self.is_open else 0.0
        # Schedules that are older than the log; who asks now is shown them all the same.
        behind = tuple(
            (run, known.seq)
            for run, known in list(self._schedules.items())
            if known.seq != self.state.seq and not known.may_be_made_anew(self.state.runs[run], now)
        )
        return self.record.created, self.state.seq, self.live.seq, self.is_complete, tick, behind

    @property
    def weight(self) -> float:
        """The memory that this takes, in events."""
        return self.state.seq + len(self.live) * _POINT_WEIGHT

    def apply(self, events: Iterable[Event]) -> None:
        """Fold the next events.

        Raises:
            UnreadableError: the log does not fit this program.
        """
        for event in events:
            try:
                self._throughput.see(self.state, event)
                self.state.apply(event)
            except IllegalEventError as cause:
                raise UnreadableError.of(self.record.name, event.seq, str(cause)) from cause
            if isinstance(event, _TASK_EVENTS):
                self._task(event)
            elif isinstance(event, _RUN_EVENTS) and event.run in self._tables:
                if isinstance(event, ModelStopRequested | ModelChanged):
                    self._tables[event.run].change(event.model)
                elif isinstance(event, SearchDecided) and event.finish is None:
                    self._tables[event.run].change(*event.stop, *(each.model for each in event.extend))
                else:
                    self._tables[event.run].change_all()
        self.is_open = bool(self.state.open_runs())

    def take(self, points: Iterable[LivePoint]) -> None:
        """Take in the next live points."""
        points = tuple(points)
        self.live.take(points)
        # The log may be ahead of the points: what has ended would stay for ever.
        for key in {point.task for point in points}:
            point = self.live.newest[key]
            run = self.state.runs.get(key.partition("/")[0])
            task = run.task(TaskKey.parse(key)) if run else None
            if task is not None and task.state not in OPEN and task.attempt >= point.attempt:
                self.live.forget(key)

    def fit(self, wanted: str = "") -> Run | None:
        """The planned fit run of that id; the newest one if there is none of that id; `None` without any."""
        chosen = self.state.runs.get(wanted)
        if chosen is not None and chosen.is_planned_fit:
            return chosen
        return next((run for run in reversed(self.state.runs.values()) if run.is_planned_fit), None)

    def fits(self) -> tuple[str, ...]:
        """Ids of planned fit runs, oldest first."""
        return tuple(run.id for run in self.state.runs.values() if run.is_planned_fit)

    def table(self, run: Run) -> ModelTable:
        """The models of a planned fit run as rows."""
        if run.id not in self._tables:
            self._tables[run.id] = ModelTable(run)
        return self._tables[run.id]

    def best_of(self, run: Run) -> Model | None:
        """The best model of a planned fit run."""
        row = self.table(run).best()
        return run.models[row.id] if row else None

    def rungs(self, run: Run) -> list[Rung]:
        """Of the search of a planned fit run, the highest first; none if it searches nothing."""
        return rungs_of(run, self._told.setdefault(run.id, Told()))

    def progress(self, run: Run) -> tuple[int, int]:
        """Tasks committed, of so many; see `Run.progress`. Of 0: nobody knows."""
        return self.table(run).progress() if run.is_planned_fit else run.progress()

    def throughput(self, now: float, run: Run | None = None) -> Throughput:
        """Of a run; if none is named, of the open one that says most (`ExperimentState.active_run`)."""
        run = run or self.state.active_run()
        if run is None or not run.is_open:
            return IDLE
        sub_epochs = self.table(run) if run.is_planned_fit else None
        return self._throughput.throughput(run, now, sub_epochs=sub_epochs, newest=self.live.newest.get)

    def schedule_now(self, run: Run, now: float) -> ScheduleNow | None:
        """How a fit run has been scheduled up to `now`; of a long run that is open it may be half a minute old."""
        known, seq = self._schedules.get(run.id), self.state.seq
        if known is not None:
            is_news = known.seq != seq or not known.is_final
            if not is_news or not known.may_be_made_anew(run, now):
                return known.found
        began = time.perf_counter()
        found = schedule_now(self.state, run, now)
        self._schedules[run.id] = _Schedule(
            found=found, seq=seq, ended=run.ended, at=now, took_s=time.perf_counter() - began
        )
        return found

    def _task(self, event: TaskAssigned | TaskStarted | TaskCommitted | TaskFailed | TaskRevoked) -> None:
        key = TaskKey.parse(event.task)
        if key.model and key.run in self._tables:
            self._tables[key.run].change(key.model)
        if isinstance(event, TaskAssigned | TaskStarted):
            return
        self.live.forget(event.task)
