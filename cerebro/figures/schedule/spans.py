"""What a Gantt chart of a fit run draws: every attempt at a sub-epoch that ran, whatever came of it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cerebro.contract.tasks import MEASURING
from cerebro.state import ExperimentState, Run, TaskState, wording
from cerebro.state.report import moment, schedule_now
from cerebro.state.timeline import Try, tries

Outcome = Literal["committed", "failed", "revoked", "running"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An attempt at a sub-epoch, or at what is done beside sub-epochs. Times are seconds since the start of the run's
    first sub-epoch.

    Attributes:
        task: its key. kind: of task. what: it in words, if it is no sub-epoch.
        model, epoch, partition, worker, attempt: what ran where. devices: of the worker; none if it takes none.
        way: label of how a sub-epoch used them; empty: on one, as user code is written.
        start_s, end_s: of one that runs, `end_s` is now.
        outcome: what came of it. note: how an attempt that came to nothing ended, or what a trial has shown, in words.
        process_s: at its beginning, until its process had started and its own work began; 0 where unknown (only commits
            tell).
        load_s, save_s: after that, and at its end; 0 where unknown, too.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """A worker was not there. Seconds, on the clock of `Span`.

    Attributes:
        start_s: when it was lost; 0 if it was not there by then. end_s: when it came; `None`: it did not.
        lost: why it was lost; empty if it had not been there before.
    """

    worker: str
    start_s: float
    end_s: float | None
    lost: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenBar:
    """A device that other runs had. Seconds, on the clock of `Span`."""

    worker: str
    devices: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Landmarks:
    """What the spans of a run are seen against. Times are seconds on their clock, which does not stand still in breaks
    (`cerebro.state.breaks`); durations leave them out.

    Attributes:
        now_s: now, while sub-epochs remain; else the last commit.
        breaks: (from, to): the run had ended until a user resumed it, or no worker of it was there.
        epochs: (epoch, when all models had trained it).
        lower_bound_s: a duration: no order of the run's sub-epochs takes less.
        bound_at_s: when the run would have ended then.
        taken: what other runs had of the devices. absences: workers that were lost, or came later.
        idle_share: of the devices' time, without a task of whatever kind; `None` if it is not known.
        window: (from, to): nothing else is looked at; `None`: all of the run is. Without an end (infinity) what is
            planned is looked at, too.
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
    """Of a fit run of `state`, up to `now` (the store's clock, seconds); all 0 while no sub-epoch has started."""
    at = run.ended or now
    found, zero, begun = schedule_now(state, run, at), run.origin, run.zero
    if found is None:
        return Landmarks(now_s=0.0)
    return Landmarks(
        now_s=moment(run, begun, found.makespan_s) - zero,
        breaks=tuple((since - zero, until - zero) for since, until in run.breaks if since >= zero),
        epochs=tuple((epoch.epoch, moment(run, begun, epoch.makespan_s) - zero) for epoch in run.epochs),
        lower_bound_s=found.lower_bound_s,
        bound_at_s=moment(run, begun, found.lower_bound_s) - zero,
        idle_share=found.idle_share,
        taken=tuple(_taken(run)),
        absences=tuple(_absences(state, zero, at)),
    )


def _absences(state: ExperimentState, zero: float, until: float) -> list[Absence]:
    """Of workers that train, between two times on the store's clock, by start."""
    found: list[Absence] = []
    away: dict[str, tuple[float, str]] = {}
    seen: set[str] = set()
    for change in sorted(state.worker_changes, key=lambda change: change.time):
        known = state.workers.get(change.worker)
        if change.time > until or known is None or not known.trains:
            continue
        if not change.is_there:
            away[change.worker] = change.time, (change.lost or "lost") if change.time > zero else ""
        elif change.time > zero and (change.worker in away or change.worker not in seen):
            since, lost = away.get(change.worker, (zero, ""))
            found.append(_absence(change.worker, since, change.time, lost, zero))
        if change.is_there:
            away.pop(change.worker, None)
        seen.add(change.worker)
    found += [_absence(name, since, None, lost, zero) for name, (since, lost) in away.items() if since > zero]
    return sorted(found, key=lambda absence: absence.start_s)


def _absence(worker: str, since: float, until: float | None, lost: str, zero: float) -> Absence:
    start_s = max(0.0, since - zero)
    return Absence(worker=worker, start_s=start_s, end_s=None if until is None else until - zero, lost=lost)


def _taken(run: Run) -> list[TakenBar]:
    """What other runs had of the devices since the first sub-epoch of `run` started, by start."""
    found = [
        TakenBar(
            worker=span.worker,
            devices=(span.device,),
            start_s=max(0.0, span.since - run.origin),
            end_s=span.until - run.origin,
        )
        for spans in run.taken.values()
        for span in spans
        if span.until > run.origin
    ]
    return sorted(found, key=lambda bar: bar.start_s)


def worker_rows(state: ExperimentState, found: Iterable[Span]) -> dict[str, int]:
    """Workers that run sub-epochs, or ran one of these, and how many devices they have; `by_number`."""
    return rows_with(
        {w.name: w.devices for w in state.workers.values() if w.trains and not w.is_removed}, found
    )


def rows_with(known: Mapping[str, int], found: Iterable[Span]) -> dict[str, int]:
    """Rows of workers, and of those that ran one of these, in the order of `by_number`."""
    there = dict(known)
    for span in found:
        there[span.worker] = max([there.get(span.worker, 1), *(device + 1 for device in span.devices)])
    return dict(sorted(there.items(), key=lambda item: by_number(item[0])))


def spans(run: Run, now: float) -> list[Span]:
    """All attempts at sub-epochs of `run` that ran, by start; those that still do up to `now` (the store's clock,
    seconds).

    Validation runs in the gaps; it is no sub-epoch.
    """
    return _spans(run, now, {"train"})


def beside_sub_epochs(run: Run, now: float) -> list[Span]:
    """The same of partitions that were made again for `run`, of inspections and trials of its models, of questions of
    its search, and of sub-epochs that were done once more. Until its first sub-epoch starts they are before 0."""
    return _spans(run, now, BESIDE) if run.kind == "fit" else []


BESIDE = frozenset({"etl", "search", "audit", *MEASURING})
"""Kinds of tasks that are done beside sub-epochs."""


def spans_of(
    found: Iterable[Try], zero: float, until: float, kinds: Collection[str] = ("train",)
) -> list[Span]:
    """The same of attempts that were read from the log, by start. Of one that had not ended by then no more is known.

    Args:
        zero: when the run's first sub-epoch started, seconds of the store's clock.
        until: up to when they were read.
    """
    chosen = [each for each in found if each.key.kind in kinds and (each.attempt.has_run or each.visit)]
    spans = (
        _made(
            each,
            zero,
            ended=each.attempt.ended if each.attempt.outcome else max(until, each.attempt.started),
            outcome=_outcome(each.attempt.outcome) if each.attempt.outcome else "running",
            note=each.attempt.outcome if each.attempt.outcome != "committed" else "",
        )
        for each in chosen
    )
    at_each = (span for each, made in zip(chosen, spans, strict=True) for span in _at_each(each, made))
    return sorted(at_each, key=lambda span: span.start_s)


def _spans(run: Run, now: float, kinds: Collection[str]) -> list[Span]:
    zero = run.origin if math.isfinite(run.origin) else now
    chosen = (tried for tried in tries(run) if tried.key.kind in kinds)
    found = (each for tried in chosen for each in _at_each(tried, _span(tried, run, zero, now)))
    return sorted(found, key=lambda span: span.start_s)


def _at_each(tried: Try, span: Span | None) -> Iterator[Span]:
    """An attempt on a set of partitions is at each worker of its gang."""
    if span is not None:
        yield span
        for member in tried.attempt.others:
            yield replace(span, worker=member.worker, partition=member.partition, devices=member.devices)


def _span(tried: Try, run: Run, zero: float, now: float) -> Span | None:
    """The attempt, if it ever ran."""
    key, attempt, visit = tried
    name = str(key)
    ended, outcome = attempt.ended, _outcome(attempt.outcome)
    if not attempt.outcome:
        task = run.open.get(name)
        if task is None or task.state is not TaskState.RUNNING:
            return None
        ended, outcome = max(now, attempt.started), "running"
    # A start at 0, where virtual time begins, is told from none by what came of it.
    elif attempt.started <= 0 and visit is None:
        return None
    note = attempt.outcome if outcome in ("failed", "revoked") else _shown(tried, run)
    return _made(tried, zero, ended=ended, outcome=outcome, note=note)


def _made(tried: Try, zero: float, *, ended: float, outcome: Outcome, note: str) -> Span:
    key, attempt, visit = tried
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
        process_s=visit.start_s if visit else 0.0,
        load_s=visit.load_s if visit else 0.0,
        save_s=visit.save_s if visit else 0.0,
        devices=attempt.devices,
        parallel_plan=attempt.parallel_plan.label if attempt.parallel_plan else "",
        kind=key.kind,
        what="" if key.kind == "train" else wording.task(key),
    )


def _shown(tried: Try, run: Run) -> str:
    """What a trial has shown; empty for anything else."""
    key, attempt, _ = tried
    outcome = run.trials.get((key.group or "", key.parallel_plan or ""))
    if key.kind != "trial" or attempt.outcome != "committed" or outcome is None:
        return ""
    return outcome.reason or f"{1000 * outcome.batch_s:.3g} ms a batch"


def by_number(worker: str) -> list[tuple[int, str]]:
    """A key to sort workers by: worker-2 before worker-10, so that rows never change places."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", worker)]


def _outcome(word: str) -> Outcome:
    if word == "committed":
        return "committed"
    return "revoked" if word.startswith("revoked") else "failed"
