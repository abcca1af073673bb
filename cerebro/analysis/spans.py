"""What a Gantt chart of a fit run draws: every attempt at a unit that ran, whatever came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cerebro.state import Run, TaskState
from cerebro.state.timeline import Try, tries

Outcome = Literal["committed", "failed", "revoked", "running"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An attempt at a unit. Times are seconds since the start of the run's first unit.

    Attributes:
        task: its key.
        model, epoch, partition, worker, attempt: what ran where.
        start_s, end_s: of one that runs, `end_s` is now.
        outcome: what came of it. note: how an attempt that came to nothing ended, in words.
        load_s, save_s: at its beginning and at its end; 0 where unknown (only commits tell).
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
    load_s: float = 0.0
    save_s: float = 0.0


def spans(run: Run, now: float) -> list[Span]:
    """All attempts at units of `run` that ran, by start; those that still do up to `now` (the store's clock, seconds).

    Validation runs in the gaps; it is no unit.
    """
    zero = run.origin
    units = (tried for tried in tries(run) if tried.key.kind == "train")
    found = (_span(tried, run, zero, now) for tried in units)
    return sorted((span for span in found if span is not None), key=lambda span: span.start_s)


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
    return Span(
        task=name,
        model=key.model or "",
        epoch=key.epoch or 0,
        partition=0 if key.partition is None else key.partition,
        worker=attempt.worker,
        attempt=attempt.number,
        start_s=attempt.started - zero,
        end_s=ended - zero,
        outcome=outcome,
        note=attempt.outcome if outcome in ("failed", "revoked") else "",
        load_s=visit.load_s if visit else 0.0,
        save_s=visit.save_s if visit else 0.0,
    )


def _outcome(word: str) -> Outcome:
    if word == "committed":
        return "committed"
    return "revoked" if word.startswith("revoked") else "failed"
