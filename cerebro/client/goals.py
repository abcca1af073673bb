"""Goals of a fit: deadline, budget and number of workers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.runs import Goal
from cerebro.errors import DataError

_MAX_WORKERS = 1000
"""Largest number of workers that a user may request."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Cost limit of a run.

    Attributes:
        worker_hours: hours of training workers, summed over the workers present for the run. Cerebro pauses the run
            when they are spent; `Experiment.resume` then continues it without a budget.

    Example::

        experiment.run_fit(..., budget=Budget(worker_hours=40))
    """

    worker_hours: float


def goal(
    finish_by: datetime.datetime | datetime.timedelta | None,
    budget: Budget | None,
    workers: Sequence[int] | None,
    *,
    now: float,
    max_workers: int = 0,
) -> Goal:
    """Validate the goals of a fit.

    Args:
        finish_by: timezone-aware datetime, or timedelta from `now`.
        budget: cost limit.
        workers: minimum and maximum number of workers.
        now: seconds since the epoch.
        max_workers: largest size of the cluster by its settings; 0 if unknown.

    Raises:
        DataError: an argument is invalid.
    """
    return Goal(
        finish_by=None if finish_by is None else _finish_by(finish_by, now),
        worker_hours=None if budget is None else _worker_hours(budget),
        workers=None if workers is None else _worker_range(workers, max_workers),
    )


def _finish_by(deadline: object, now: float) -> float:
    if isinstance(deadline, datetime.timedelta):
        if deadline.total_seconds() <= 0:
            raise DataError(f"finish_by is {deadline}, expected a time span above 0 or a time in the future")
        return now + deadline.total_seconds()
    if not isinstance(deadline, datetime.datetime):
        raise DataError(
            f"finish_by is {deadline!r}, expected a datetime with a time zone, or a timedelta such as "
            "timedelta(hours=6)"
        )
    if deadline.tzinfo is None:
        raise DataError(
            f"finish_by is {deadline.isoformat()}, without a time zone. Use finish_by.astimezone() for the time zone "
            "of this machine"
        )
    if deadline.timestamp() <= now:
        moment = datetime.datetime.fromtimestamp(now, deadline.tzinfo).isoformat(timespec="seconds")
        raise DataError(f"finish_by is {deadline.isoformat()}, in the past: it is {moment} now")
    return deadline.timestamp()


def _worker_hours(budget: object) -> float:
    hours: Any = budget.worker_hours if isinstance(budget, Budget) else None
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours < float("inf"):
        shown = f"{hours!r} worker-hours" if isinstance(budget, Budget) else repr(budget)
        raise DataError(f"budget is {shown}, expected more than 0, such as Budget(worker_hours=40)")
    return float(hours)


def _worker_range(workers: object, max_workers: int) -> tuple[int, int]:
    expected = "expected minimum and maximum, such as workers=(2, 12)"
    numbers: list[Any] = [*workers] if isinstance(workers, Sequence) else []
    if len(numbers) != 2 or not all(type(number) is int for number in numbers):
        raise DataError(f"workers is {workers!r}, {expected}")
    low: int = numbers[0]
    high: int = numbers[1]
    if not 1 <= low <= high <= _MAX_WORKERS:
        raise DataError(f"workers is ({low}, {high}), {expected}: from 1 to {_MAX_WORKERS}")
    if max_workers and high > max_workers:
        raise DataError(
            f"workers is ({low}, {high}), but this cluster may have {max_workers}: lower the maximum, or raise "
            "autoscaler.mostWorkers in the chart (CEREBRO_MOST_WORKERS for a local cluster)"
        )
    return low, high
