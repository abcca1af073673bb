"""Data of a Gantt chart: attempts at a fit run's sub-epochs, its other tasks, absences and landmarks. Pure.

`cerebro.client.reporting.drawings` and `dispatcher.schedule.figure` call it; `spans_of` takes attempts that the caller
read from the log, for long runs whose state keeps only the newest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cerebro.contract.tasks.bodies import MEASURING
from cerebro.state import ExperimentState, Run, TaskState
from cerebro.state.reports import state_words
from cerebro.state.reports.schedule_report import moment, schedule_now
from cerebro.state.reports.timeline import TaskAttempt, task_attempts

Outcome = Literal["committed", "failed", "revoked", "running"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An attempt at a task, for a bar. Times are seconds since the run's first sub-epoch started.

    Attributes:
        task: key of the task.
        model, epoch, partition, worker, attempt: the sub-epoch, its worker and the attempt's number.
        start_s, end_s: start and end; a running attempt ends now.
        outcome: the attempt's outcome.
        note: description of a failure, or the result of a trial.
        process_s: seconds until its process had started and its own work began; 0 if unknown or not committed.
        load_s, save_s: seconds of loading after that, and of saving at the end; 0 if unknown.
        devices: devices of the worker; empty for a task without one.
        parallel_plan: label of the parallel plan; empty for one device, as user code is written.
        kind: kind of the task.
        what: description of a task that is not a sub-epoch.
        group: id of the attempt's fused group; empty without one.
        sharing: number of attempts in the group at its start; each has a slice of the bar's height.
    """

    task: str
    model: str
    epoch: int
    partition: int
    worker: str
    attempt: int
    start_s: float
    end_s: float
    outcome: Outcome
    note: str = ""
    process_s: float = 0.0
    load_s: float = 0.0
    save_s: float = 0.0
    devices: tuple[int, ...] = (0,)
    parallel_plan: str = ""
    kind: str = "train"
    what: str = ""
    group: str = ""
    sharing: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """A time without a worker, on the clock of `Span`.

    Attributes:
        start_s: time of its loss, or 0.
        end_s: time of its arrival, or `None`.
        lost: reason of the loss; empty for a new worker.
    """

    worker: str
    start_s: float
    end_s: float | None
    lost: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenBar:
    """Use of devices by another run, on the clock of `Span`."""

    worker: str
    devices: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Landmarks:
    """Background of a schedule. Times are seconds on the clock of `Span`, which continues in breaks.

    Durations do not include breaks (`cerebro.state.runs.breaks`).

    Attributes:
        now_s: now, while sub-epochs remain; else the last commit.
        breaks: (start, end) of times in which the run had ended or had no worker.
        epochs: (epoch, time when all models had completed it).
        lower_bound_s: minimum duration of any order of the run's sub-epochs.
        bound_at_s: time when the run would have ended with that duration.
        idle_share: share of the devices' time without a task, or `None` if unknown.
        taken: devices used by other runs.
        absences: times without a worker.
        window: time range to show, or `None` for all of the run. With an infinite end the plan is shown, too.
    """

    now_s: float
    breaks: tuple[tuple[float, float], ...] = ()
    epochs: tuple[tuple[int, float], ...] = ()
    lower_bound_s: float = 0.0
    bound_at_s: float = 0.0
    idle_share: float | None = None
    taken: tuple[TakenBar, ...] = ()
    absences: tuple[Absence, ...] = ()
    window: tuple[float, float] | None = None


def landmarks(state: ExperimentState, run: Run, now: float) -> Landmarks:
    """Compute the landmarks of a fit run up to `now`, in seconds of the store's clock.

    Before the first sub-epoch starts, all values are 0.
    """
    at = run.clock.ended or now
    schedule, zero, begun = schedule_now(state, run, at), run.clock.first_start, run.zero
    if schedule is None:
        return Landmarks(now_s=0.0)
    return Landmarks(
        now_s=moment(run, begun, schedule.makespan_s) - zero,
        breaks=tuple((since - zero, until - zero) for since, until in run.clock.breaks if since >= zero),
        epochs=tuple(
            (epoch.epoch, moment(run, begun, epoch.makespan_s) - zero) for epoch in run.scheduling.epochs
        ),
        lower_bound_s=schedule.lower_bound_s,
        bound_at_s=moment(run, begun, schedule.lower_bound_s) - zero,
        idle_share=schedule.idle_share,
        taken=tuple(_taken(run)),
        absences=tuple(_absences(state, zero, at)),
    )


def _absences(state: ExperimentState, zero: float, until: float) -> list[Absence]:
    """Return the absences of training workers between two store times, by start."""
    absences: list[Absence] = []
    absent: dict[str, tuple[float, str]] = {}
    known_workers: set[str] = set()
    for change in sorted(state.worker_changes, key=lambda change: change.time):
        known = state.workers.get(change.worker)
        if change.time > until or known is None or not known.trains:
            continue
        if not change.is_there:
            absent[change.worker] = change.time, (change.lost or "lost") if change.time > zero else ""
        elif change.time > zero and (change.worker in absent or change.worker not in known_workers):
            since, lost = absent.get(change.worker, (zero, ""))
            absences.append(_absence(change.worker, since, change.time, lost, zero))
        if change.is_there:
            absent.pop(change.worker, None)
        known_workers.add(change.worker)
    absences += [
        _absence(name, since, None, lost, zero) for name, (since, lost) in absent.items() if since > zero
    ]
    return sorted(absences, key=lambda absence: absence.start_s)


def _absence(worker: str, since: float, until: float | None, lost: str, zero: float) -> Absence:
    start_s = max(0.0, since - zero)
    return Absence(worker=worker, start_s=start_s, end_s=None if until is None else until - zero, lost=lost)


def _taken(run: Run) -> list[TakenBar]:
    """Return the use of devices by other runs since the run's first sub-epoch, by start."""
    bars = [
        TakenBar(
            worker=span.worker,
            devices=(span.device,),
            start_s=max(0.0, span.since - run.clock.first_start),
            end_s=span.until - run.clock.first_start,
        )
        for spans in run.device_time.taken.values()
        for span in spans
        if span.until > run.clock.first_start
    ]
    return sorted(bars, key=lambda bar: bar.start_s)


def worker_rows(state: ExperimentState, spans: Iterable[Span]) -> dict[str, int]:
    """Return the devices of current training workers and of workers in `spans`; order: `by_number`."""
    return rows_with(
        {w.name: w.devices for w in state.workers.values() if w.trains and not w.is_removed}, spans
    )


def rows_with(known: Mapping[str, int], spans: Iterable[Span]) -> dict[str, int]:
    """Add the workers in `spans` to known workers and their devices, in the order of `by_number`."""
    devices = dict(known)
    for span in spans:
        devices[span.worker] = max([devices.get(span.worker, 1), *(device + 1 for device in span.devices)])
    return dict(sorted(devices.items(), key=lambda item: by_number(item[0])))


def spans(run: Run, now: float) -> list[Span]:
    """Return all attempts at a run's sub-epochs, by start, up to `now` in seconds of the store's clock.

    Validation is not a sub-epoch: see `other_tasks`.
    """
    return _spans(run, now, {"train"})


def other_tasks(run: Run, now: float) -> list[Span]:
    """Return the attempts at a fit run's other tasks, by start.

    These are validations, replicas, inspections, trials, search actions and re-executions. Those before
    the first sub-epoch have negative times.
    """
    return _spans(run, now, OTHER_TASK_KINDS) if run.kind == "fit" else []


OTHER_TASK_KINDS = frozenset({"valid", "etl", "search", "verify", *MEASURING})
"""Kinds of the other tasks in a schedule."""


def spans_of(
    attempts: Iterable[TaskAttempt], zero: float, until: float, kinds: Collection[str] = ("train",)
) -> list[Span]:
    """Return the spans of attempts read from the log, by start.

    Args:
        zero: start of the run's first sub-epoch, in seconds of the store's clock.
        until: time of the newest event read.
        kinds: kinds of tasks to return.
    """
    chosen = [
        each for each in attempts if each.key.kind in kinds and (each.attempt.has_run or each.sub_epoch)
    ]
    spans = (
        _new_span(
            each,
            zero,
            ended=each.attempt.ended if each.attempt.outcome else max(until, each.attempt.started),
            outcome=_outcome(each.attempt.outcome) if each.attempt.outcome else "running",
            note=each.attempt.outcome if each.attempt.outcome != "committed" else "",
        )
        for each in chosen
    )
    per_worker = (span for each, span in zip(chosen, spans, strict=True) for span in _per_worker(each, span))
    return sorted(per_worker, key=lambda span: span.start_s)


def _spans(run: Run, now: float, kinds: Collection[str]) -> list[Span]:
    zero = run.clock.first_start if math.isfinite(run.clock.first_start) else now
    chosen = (tried for tried in task_attempts(run) if tried.key.kind in kinds)
    spans = (each for tried in chosen for each in _per_worker(tried, _span(tried, run, zero, now)))
    return sorted(spans, key=lambda span: span.start_s)


def _per_worker(tried: TaskAttempt, span: Span | None) -> Iterator[Span]:
    """Yield a span for each worker of a gang."""
    if span is not None:
        yield span
        for member in tried.attempt.other_members:
            yield replace(span, worker=member.worker, partition=member.partition, devices=member.devices)


def _span(tried: TaskAttempt, run: Run, zero: float, now: float) -> Span | None:
    """Return the span of an attempt; `None` if it never ran."""
    key, attempt, sub_epoch = tried.key, tried.attempt, tried.sub_epoch
    name = str(key)
    ended, outcome = attempt.ended, _outcome(attempt.outcome)
    if not attempt.outcome:
        task = run.tasks.open.get(name)
        if task is None or task.state is not TaskState.RUNNING:
            return None
        ended, outcome = max(now, attempt.started), "running"
    # With virtual time a start can be 0, so only the outcome shows that it ran.
    elif attempt.started <= 0 and sub_epoch is None:
        return None
    note = attempt.outcome if outcome in ("failed", "revoked") else _trial_result(tried, run)
    return _new_span(tried, zero, ended=ended, outcome=outcome, note=note)


def _new_span(tried: TaskAttempt, zero: float, *, ended: float, outcome: Outcome, note: str) -> Span:
    key, attempt, sub_epoch = tried.key, tried.attempt, tried.sub_epoch
    return Span(
        task=str(key),
        model=key.model or "",
        epoch=key.epoch or 0,
        partition=0 if key.partition is None else key.partition,
        worker=attempt.worker,
        attempt=attempt.number,
        start_s=attempt.started - zero,
        end_s=ended - zero,
        outcome=outcome,
        note=note,
        process_s=sub_epoch.timings.start_s if sub_epoch else 0.0,
        load_s=sub_epoch.timings.load_s if sub_epoch else 0.0,
        save_s=sub_epoch.timings.save_s if sub_epoch else 0.0,
        devices=attempt.devices,
        parallel_plan=attempt.parallel_plan.label if attempt.parallel_plan else "",
        kind=key.kind,
        what="" if key.kind == "train" else state_words.task(key),
        group=attempt.group.id if attempt.group is not None else "",
        sharing=attempt.num_sharing,
    )


def _trial_result(tried: TaskAttempt, run: Run) -> str:
    """Return the result of a trial; empty for other tasks."""
    key, attempt = tried.key, tried.attempt
    outcome = run.trials.outcomes.get((key.group or "", key.parallel_plan or ""))
    if key.kind != "trial" or attempt.outcome != "committed" or outcome is None:
        return ""
    return outcome.reason or f"{1000 * outcome.batch_s:.3g} ms a batch"


def by_number(worker: str) -> list[tuple[int, str]]:
    """Return a sort key that puts worker-2 before worker-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", worker)]


def _outcome(word: str) -> Outcome:
    if word == "committed":
        return "committed"
    return "revoked" if word.startswith("revoked") else "failed"
