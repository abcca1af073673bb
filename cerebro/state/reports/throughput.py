"""Current throughput of a run, and the time left. Pure, except for the remembered commits.

Time left is the remaining rows over the throughput of the last minutes. It is at least the longest model's remaining
sub-epochs times the mean sub-epoch time, since a model trains in one place at a time. The first process start on a
device, with imports, counts neither for throughput nor for sub-epoch time; later starts count. Validations and replica
copies count in neither; they only slow the run down. The clock stops in breaks (`cerebro.state.runs.breaks`) and
pauses. The estimate ignores queues, failures, and differences in cost between models. An open search has no known end,
so no time is shown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from cerebro.contract.events import Event, LivePoint, TaskCommitted
from cerebro.contract.runs import EtlPlan, FitPlan
from cerebro.state.experiment import ExperimentState
from cerebro.state.reports.turnaround import turnaround_s
from cerebro.state.runs.run import Run, RunState
from cerebro.state.tasks.task import TaskState
from cerebro.state.workers import NO_DEVICE

WINDOW_S = 300.0
"""Throughput covers the last five minutes."""
_COMMITS = 512

BASIS = "work left over the throughput of the last five minutes"
FORECAST = "simulation of the sub-epochs that remain"


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """An estimate: `seconds` from now, or `ends_at` (seconds since the epoch); `basis` names the method."""

    seconds: float
    ends_at: float
    basis: str = BASIS

    @property
    def words(self) -> str:
        """Time left in the largest fitting time unit."""
        for length, sub_epoch in ((86_400, "days"), (3600, "h"), (60, "min")):
            if self.seconds >= 2 * length:
                return f"about {self.seconds / length:.0f} {sub_epoch} left"
        return f"about {self.seconds:.0f} s left"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput over the last `over_s` seconds (at most five minutes), without first process starts; 0 if unknown."""

    rows_per_s: float
    sub_epochs_per_min: float
    over_s: float
    time_left: TimeLeft | None


class SubEpochs(Protocol):
    """Counts over a fit run's models, for callers that maintain them."""

    def progress(self) -> tuple[int, int]:
        """Return (sub-epochs committed, sub-epochs in all)."""

    def longest(self) -> int:
        """Return the largest number of remaining sub-epochs of a model."""


@dataclass(frozen=True)
class _Counted:
    run: Run

    def progress(self) -> tuple[int, int]:
        return self.run.progress()

    def longest(self) -> int:
        return max(map(self.run.due, self.run.models.values()), default=0)


def _nothing(_: str) -> None:
    return None


IDLE = Throughput(rows_per_s=0.0, sub_epochs_per_min=0.0, over_s=0.0, time_left=None)


_WORK = {"fit": "train"}
"""Kind of run -> kind of its main tasks, if the names differ."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A committed attempt, or a running one until now."""

    run: str
    worker: str
    devices: tuple[int, ...]
    started: float
    begun: float
    """Start of its own work."""
    ended: float
    rows: int
    sharing: int = 1
    """Number of attempts that share the devices."""

    def by(self, clock: Callable[[float], float]) -> _Span:
        """Return the span in another clock."""
        return replace(self, started=clock(self.started), begun=clock(self.begun), ended=clock(self.ended))

    @property
    def places(self) -> set[tuple[str, int]]:
        """(worker, device) pairs that the attempt occupied."""
        return {(self.worker, device) for device in self.devices or (NO_DEVICE,)}

    @property
    def num_devices(self) -> float:
        """Its share of these devices."""
        return len(self.places) / self.sharing


class ThroughputMeter:
    """Meter with the newest commits of an experiment. One owner, not thread-safe."""

    def __init__(self) -> None:
        self._commits: deque[_Span] = deque(maxlen=_COMMITS)

    def recall(self, state: ExperimentState) -> None:
        """Load the newest sub-epochs of open fits from a state."""
        sub_epochs = [
            (sub_epoch.ended, run, sub_epoch)
            for run in state.open_runs()
            for model in run.models.values()
            for sub_epoch in model.kept_sub_epochs[-_COMMITS:]
        ]
        for _, run, sub_epoch in sorted(sub_epochs, key=lambda found: found[0])[-_COMMITS:]:
            self._commits.append(
                _Span(
                    run.id,
                    sub_epoch.worker,
                    sub_epoch.devices,
                    sub_epoch.started,
                    sub_epoch.begun,
                    sub_epoch.ended,
                    sub_epoch.rows,
                    sub_epoch.group.size,
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
        """Add a committed task of `run`. Its process took `start_s` seconds to start; times are the store's clock."""
        if _is_work(run, kind):
            begun = _begun(started, start_s, ended)
            self._commits.append(_Span(run.id, worker, devices, started, begun, ended, rows))

    def observe(self, state: ExperimentState, event: Event) -> None:
        """Add a commit before it is applied: afterwards the run drops the sub-epoch's task."""
        if not isinstance(event, TaskCommitted):
            return
        run = state.runs.get(event.task.partition("/")[0])
        task = run.tasks.open.get(event.task) if run is not None else None
        if run is None or task is None or not _is_work(run, task.key.kind):
            return
        attempt, result = task.attempts[-1], event.result
        if attempt.started:
            self._commits.append(
                _Span(
                    run.id,
                    event.worker,
                    attempt.devices,
                    attempt.started,
                    _begun(attempt.started, result.timings.start_s, event.time),
                    event.time,
                    result.rows - result.resumed_rows,
                    attempt.num_sharing,
                )
            )

    def throughput(
        self,
        run: Run,
        now: float,
        *,
        sub_epochs: SubEpochs | None = None,
        newest: Callable[[str], LivePoint | None] = _nothing,
    ) -> Throughput:
        """Return the throughput of an open run at `now` (the store's clock).

        Args:
            sub_epochs: counts of a planned fit, if the caller has them.
            newest: task -> newest report of its open attempt.
        """
        table = sub_epochs or (_Counted(run) if run.is_planned_fit else None)
        clock = run.clock.worked_until
        run_commits = _with_later_starts(commit.by(clock) for commit in self._commits if commit.run == run.id)
        told_at, now = now, clock(now)
        begin = max(clock(run.clock.started), now - WINDOW_S)
        if len(self._commits) == _COMMITS:
            begin = max(begin, clock(self._commits[0].ended))  # older commits are forgotten, for all runs
        if not run.clock.started or now <= begin:
            return IDLE
        recent = [commit for commit in run_commits if commit.ended > begin]
        running = [span.by(clock) for span in _under_way(run, told_at, newest)]
        under_way = _with_later_starts([*run_commits, *running])[len(run_commits) :]
        spans = [*recent, *under_way]
        done = sum(_share(span.begun, span.ended, begin) * span.rows for span in spans)
        # Devices work in parallel: lost time of one counts as its share.
        places = len({place for span in spans for place in span.places}) or 1
        lost = sum(span.num_devices * max(0.0, span.begun - max(span.started, begin)) for span in spans)
        worked = sum(span.num_devices * max(0.0, span.ended - max(span.begun, begin)) for span in spans)
        over_s = max(now - begin - lost / places, worked / places)
        rate = done / over_s
        left_s = None
        if rate > 0 and (rows_left := _rows_left(run, table)) is not None:
            rows_left -= sum(span.rows for span in under_way)
            mean_s = (
                sum(commit.ended - commit.begun for commit in run_commits) / len(run_commits)
                if run_commits
                else 0.0
            )
            pause_s = turnaround_s(run) if run.is_planned_fit else 0.0
            chain_s = (mean_s + pause_s) * table.longest() if table else 0.0
            left_s = max(max(0.0, rows_left) / rate, chain_s)
        return Throughput(
            rows_per_s=rate,
            sub_epochs_per_min=60 * len(recent) / over_s,
            over_s=over_s,
            time_left=forecast_left(run, told_at)
            or (TimeLeft(seconds=left_s, ends_at=told_at + left_s) if left_s is not None else None),
        )


def forecast_left(run: Run, now: float) -> TimeLeft | None:
    """Return the newest forecast's time left; `None` after an interruption or past its end."""
    if not run.scheduling.forecasts or run.state is not RunState.RUNNING:
        return None
    newest = run.scheduling.forecasts[-1]
    ends_at = newest.time + newest.end.p50_s
    interrupted = max((until for _, until in (*run.clock.breaks, *run.clock.pauses)), default=0.0)
    if ends_at <= now or interrupted > newest.time:
        return None
    return TimeLeft(seconds=ends_at - now, ends_at=ends_at, basis=FORECAST)


def _under_way(run: Run, now: float, newest: Callable[[str], LivePoint | None]) -> Iterator[_Span]:
    """Running attempts with a report; without one it is unknown whether the process has started."""
    for task in run.tasks.open.values():
        point = newest(str(task.key))
        if point is not None and task.state is TaskState.RUNNING and _is_work(run, task.key.kind):
            attempt = task.attempts[-1]
            end = max(now, attempt.started)
            begun = _begun(attempt.started, point.start_s, end)
            yield _Span(
                run.id,
                attempt.worker,
                attempt.devices,
                attempt.started,
                begun,
                end,
                point.rows,
                attempt.num_sharing,
            )


def _with_later_starts(spans: Iterable[_Span]) -> list[_Span]:
    """Count process starts as work, except the first on each device, which the attempts of a fused group share."""
    counted, first_ends = [], dict[tuple[str, int], float]()
    for span in spans:
        is_later = all(first_ends.get(place, math.inf) <= span.started for place in span.places)
        counted.append(replace(span, begun=span.started) if is_later else span)
        for place in span.places:
            first_ends.setdefault(place, span.ended)
    return counted


def _begun(started: float, start_s: float, ended: float) -> float:
    return min(started + max(0.0, start_s), ended)


def _is_work(run: Run, kind: str) -> bool:
    """True for tasks that `_rows_left` counts."""
    return kind == _WORK.get(run.kind, run.kind)


def _share(started: float, ended: float, begin: float) -> float:
    """The share of a span after `begin`."""
    return min(1.0, (ended - begin) / (ended - started)) if ended > max(started, begin) else 0.0


def _rows_left(run: Run, table: SubEpochs | None) -> float | None:
    """Remaining rows, running tasks included; `None` if unknown."""
    if run.plan is None or not run.has_known_end:
        return None
    if table is not None and isinstance(run.plan, FitPlan):
        done, total = table.progress()
        return (total - done) * sum(run.plan.partitions.values()) / max(1, len(run.plan.partitions))
    pending = [task.key for task in run.tasks.requested() if task.state is not TaskState.COMMITTED]
    if isinstance(run.plan, EtlPlan):
        sizes = {(split, p.partition): p.rows for split, parts in run.plan.splits.items() for p in parts}
        return sum(sizes.get((key.split or "", key.partition or 0), 0) for key in pending)
    sizes_of = run.plan.partitions
    return sum(
        sum(sizes_of.values()) if key.partition is None else sizes_of[key.partition] for key in pending
    )
