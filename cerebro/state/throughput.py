"""How fast a run goes now, and how long it will take yet. Pure but for the commits it remembers.

Time left is work left over present throughput: rows left by rows a second over the last minutes; but no less than the
longest model's sub-epochs left by the mean time of a sub-epoch, because a model is in one place at a time. What a
process takes to start and to import is over once and for all, so it counts neither for throughput nor for a sub-epoch's
time. Validations, and partitions made again, are neither in the work left nor in the throughput; they slow it down. The
clock of all this stands still while a run is stopped or none of its workers is there (`cerebro.state.breaks`), and
while it is paused. Nothing is known of queues ahead, of failures to come, or of models that cost more than those that
ran lately. While a search is not over, nobody knows the work left, so nothing is said of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cerebro.contract.events import Event, LivePoint, TaskCommitted
from cerebro.contract.runs import EtlPlan, FitPlan
from cerebro.state import breaks
from cerebro.state.experiment import ExperimentState
from cerebro.state.runs import Run, RunState
from cerebro.state.tasks import TaskState
from cerebro.state.turnaround import turnaround_s
from cerebro.state.workers import NO_DEVICE

WINDOW_S = 300.0
"""Throughput is of the last five minutes."""
_COMMITS = 512

BASIS = "work left over the throughput of the last five minutes"
FORECAST = "simulation of the sub-epochs that remain"


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """An estimate: `seconds` from now, that is at `ends_at` (seconds since the epoch). `basis` says how it was made."""

    seconds: float
    ends_at: float
    basis: str = BASIS

    @property
    def words(self) -> str:
        """In its largest sub-epoch."""
        for length, sub_epoch in ((86_400, "days"), (3600, "h"), (60, "min")):
            if self.seconds >= 2 * length:
                return f"about {self.seconds / length:.0f} {sub_epoch} left"
        return f"about {self.seconds:.0f} s left"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput of the run in progress over its last `over_s` seconds, at most five minutes, without the share of them
    that devices waited for processes to start; 0 while unknown."""

    rows_per_s: float
    sub_epochs_per_min: float
    over_s: float
    left: TimeLeft | None


class SubEpochs(Protocol):
    """Counts over a fit run's models, for who keeps them anyway."""

    def progress(self) -> tuple[int, int]:
        """Sub-epochs committed, and sub-epochs in all."""

    def longest(self) -> int:
        """Sub-epochs due of the model of which most are."""


@dataclass(frozen=True)
class _Counted:
    run: Run

    def progress(self) -> tuple[int, int]:
        return self.run.progress()

    def longest(self) -> int:
        return max(map(self.run.due, self.run.models.values()), default=0)


def _nothing(_: str) -> None:
    return None


IDLE = Throughput(rows_per_s=0.0, sub_epochs_per_min=0.0, over_s=0.0, left=None)


_WORK = {"fit": "train"}
"""Kind of run -> kind of the tasks that are its work, where that has another name."""


@dataclass(frozen=True, slots=True)
class _Span:
    """An attempt: one that was committed, or one that is under way, up to now."""

    run: str
    worker: str
    devices: tuple[int, ...]
    started: float
    begun: float
    """When its own work began."""
    ended: float
    rows: int

    def by(self, clock: Callable[[float], float]) -> _Span:
        """The same by another clock."""
        return replace(self, started=clock(self.started), begun=clock(self.begun), ended=clock(self.ended))

    @property
    def places(self) -> set[tuple[str, int]]:
        """Where no other task was meanwhile."""
        return {(self.worker, device) for device in self.devices or (NO_DEVICE,)}


class ThroughputMeter:
    """Remembers the newest commits of an experiment. One owner, not thread-safe."""

    def __init__(self) -> None:
        self._commits: deque[_Span] = deque(maxlen=_COMMITS)

    def recall(self, state: ExperimentState) -> None:
        """Take in what a fold tells of commits that were not seen here: of open fits, the newest sub-epochs."""
        visits = [
            (visit.ended, run, visit)
            for run in state.open_runs()
            for model in run.models.values()
            for visit in model.kept_visits[-_COMMITS:]
        ]
        for _, run, visit in sorted(visits, key=lambda found: found[0])[-_COMMITS:]:
            self._commits.append(
                _Span(
                    run.id, visit.worker, visit.devices, visit.started, visit.begun, visit.ended, visit.rows
                )
            )

    def commit(
        self,
        run: Run,
        kind: str,
        *,
        worker: str,
        devices: tuple[int, ...] = (0,),
        started: float,
        ended: float,
        rows: int,
        start_s: float = 0.0,
    ) -> None:
        """A task of `run` was committed, of that kind. Times are the store's clock; for the first `start_s` seconds it
        waited for its process."""
        if _is_work(run, kind):
            begun = _begun(started, start_s, ended)
            self._commits.append(_Span(run.id, worker, devices, started, begun, ended, rows))

    def see(self, state: ExperimentState, event: Event) -> None:
        """An event is about to be folded: a sub-epoch that is committed then leaves the run's tasks."""
        if not isinstance(event, TaskCommitted):
            return
        run = state.runs.get(event.task.partition("/")[0])
        task = run.open.get(event.task) if run is not None else None
        if run is not None and task is not None and task.attempts[-1].started:
            self.commit(
                run,
                task.key.kind,
                worker=event.worker,
                devices=task.attempts[-1].devices,
                started=task.attempts[-1].started,
                ended=event.time,
                rows=event.result.rows - event.result.resumed_rows,
                start_s=event.result.timings.start_s,
            )

    def throughput(
        self,
        run: Run,
        now: float,
        *,
        sub_epochs: SubEpochs | None = None,
        newest: Callable[[str], LivePoint | None] = _nothing,
    ) -> Throughput:
        """Of a run that is open, at `now` (the store's clock).

        Args:
            sub-epochs: of a planned fit, counted already.
            newest: task -> what its open attempt said last.
        """
        table = sub_epochs or (_Counted(run) if run.is_planned_fit else None)
        clock = partial(breaks.worked_until, run)
        own = [commit.by(clock) for commit in self._commits if commit.run == run.id]
        told_at, now = now, clock(now)
        begin = max(clock(run.started), now - WINDOW_S)
        if len(self._commits) == _COMMITS:
            begin = max(begin, clock(self._commits[0].ended))  # what was before is not remembered, of no run
        if not run.started or now <= begin:
            return IDLE
        recent = [commit for commit in own if commit.ended > begin]
        under_way = [span.by(clock) for span in _under_way(run, told_at, newest)]
        spans = [*recent, *under_way]
        done = sum(_share(span.begun, span.ended, begin) * span.rows for span in spans)
        # Rows come from devices side by side: time that one of them lost is so much of it less.
        places = len({place for span in spans for place in span.places}) or 1
        lost = sum(len(span.places) * max(0.0, span.begun - max(span.started, begin)) for span in spans)
        worked = sum(len(span.places) * max(0.0, span.ended - max(span.begun, begin)) for span in spans)
        over_s = max(now - begin - lost / places, worked / places)
        rate = done / over_s
        left_s = None
        if rate > 0 and (rows_left := _rows_left(run, table)) is not None:
            rows_left -= sum(span.rows for span in under_way)
            mean_s = sum(commit.ended - commit.begun for commit in own) / len(own) if own else 0.0
            pause_s = turnaround_s(run) if run.is_planned_fit else 0.0
            chain_s = (mean_s + pause_s) * table.longest() if table else 0.0
            left_s = max(max(0.0, rows_left) / rate, chain_s)
        return Throughput(
            rows_per_s=rate,
            sub_epochs_per_min=60 * len(recent) / over_s,
            over_s=over_s,
            left=forecast_left(run, told_at)
            or (TimeLeft(seconds=left_s, ends_at=told_at + left_s) if left_s is not None else None),
        )


def forecast_left(run: Run, now: float) -> TimeLeft | None:
    """Time left by the newest forecast of a running fit; `None` if the run was interrupted since, or should be over."""
    if not run.forecasts or run.state is not RunState.RUNNING:
        return None
    newest = run.forecasts[-1]
    ends_at = newest.time + newest.end.p50_s
    interrupted = max((until for _, until in (*run.breaks, *run.pauses)), default=0.0)
    if ends_at <= now or interrupted > newest.time:
        return None
    return TimeLeft(seconds=ends_at - now, ends_at=ends_at, basis=FORECAST)


def _under_way(run: Run, now: float, newest: Callable[[str], LivePoint | None]) -> Iterator[_Span]:
    """Attempts of which something was heard; of the others nobody knows if their process has started."""
    for task in run.open_tasks():
        point = newest(str(task.key))
        if point is not None and task.state is TaskState.RUNNING and _is_work(run, task.key.kind):
            attempt = task.attempts[-1]
            end = max(now, attempt.started)
            begun = _begun(attempt.started, point.start_s, end)
            yield _Span(run.id, attempt.worker, attempt.devices, attempt.started, begun, end, point.rows)


def _begun(started: float, start_s: float, ended: float) -> float:
    return min(started + max(0.0, start_s), ended)


def _is_work(run: Run, kind: str) -> bool:
    """Whether tasks of that kind are what `_rows_left` is about."""
    return kind == _WORK.get(run.kind, run.kind)


def _share(started: float, ended: float, begin: float) -> float:
    """Of a span, how much lies after `begin`."""
    return min(1.0, (ended - begin) / (ended - started)) if ended > max(started, begin) else 0.0


def _rows_left(run: Run, table: SubEpochs | None) -> float | None:
    """Rows to be done yet, running tasks included; `None` while that is not known."""
    if run.plan is None or not run.has_known_end:
        return None
    if table is not None and isinstance(run.plan, FitPlan):
        done, total = table.progress()
        return (total - done) * sum(run.plan.partitions.values()) / max(1, len(run.plan.partitions))
    pending = [task.key for task in run.own_tasks() if task.state is not TaskState.COMMITTED]
    if isinstance(run.plan, EtlPlan):
        sizes = {(split, p.partition): p.rows for split, parts in run.plan.splits.items() for p in parts}
        return sum(sizes.get((key.split or "", key.partition or 0), 0) for key in pending)
    sizes_of = run.plan.partitions
    return sum(
        sum(sizes_of.values()) if key.partition is None else sizes_of[key.partition] for key in pending
    )
