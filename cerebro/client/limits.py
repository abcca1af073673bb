"""Limits of a run: time, budget, number of workers, waiting time, and attempts of a sub-epoch.

Users pass `Limits` to `run_fit`; `Session.goal` and experiment files convert it with `goal`. Nothing here enforces a
limit: the controller stops, pauses and scales.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.runs import Goal
from cerebro.errors import DataError

_UNITS_S = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([dhms])")

_MAX_WORKERS = 1000
"""Largest number of workers that a user may request."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Cost limit of a run.

    Attributes:
        worker_hours: hours of training workers, summed over the workers present for the run. Cerebro pauses the run
            when they are spent; `Experiment.resume` then continues it without a budget.

    Example::

        experiment.run_fit(..., limits=Limits(budget=Budget(worker_hours=40)))
    """

    worker_hours: float

    def __post_init__(self) -> None:
        if not _is_positive(self.worker_hours):
            raise DataError(
                f"budget is {self.worker_hours!r} worker-hours, expected more than 0, such as Budget(worker_hours=40)"
            )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a fit run on time, cost, workers and attempts, for `Experiment.run_fit(limits=...)`.

    Attributes:
        hours: hours until all models are stopped. Default: no limit.
        finish_by: deadline, as a timezone-aware datetime or a timedelta from the start of the run. The autoscaler plans
            for it. Default: none.
        budget: worker-hours before the run is paused. Default: no limit.
        workers: minimum and maximum number of workers, such as ``(2, 12)``, on clusters that scale. Default: the
            cluster's.
        hang_timeout_s: time limit between batches, in seconds. An idle sub-epoch beyond it is ended and tried once
            more. Default 600. The limit is lower (20 times the duration of slow sub-epochs, at least 60 s and
            `hang_timeout_s` / 10) if that is known, and up to three times higher while the process computes.
        max_attempts: attempts of a sub-epoch whose process crashes. Default 3.
        wait_limit: time that the run may wait for workers before it pauses, such as ``"2h"`` or ``"90m"``, in seconds,
            or as a timedelta. `Experiment.resume` continues the run. Default: no limit.

    Raises:
        DataError: a value is out of range.

    Example:
        >>> from datetime import timedelta
        >>> from cerebro import Budget, Limits
        >>> Limits(finish_by=timedelta(hours=6), budget=Budget(worker_hours=40)).max_attempts
        3
        >>> Limits(hours=-1)
        Traceback (most recent call last):
            ...
        cerebro.errors.DataError: hours is -1, expected a positive number of hours, such as 1.5
    """

    hours: float | None = None
    finish_by: datetime.datetime | datetime.timedelta | None = None
    budget: Budget | None = None
    workers: tuple[int, int] | None = None
    hang_timeout_s: float = 600.0
    max_attempts: int = 3
    wait_limit: str | float | datetime.timedelta | None = None

    def __post_init__(self) -> None:
        if self.hours is not None and not _is_positive(self.hours):
            raise DataError(f"hours is {self.hours!r}, expected a positive number of hours, such as 1.5")
        if self.finish_by is not None:
            _check_deadline(self.finish_by)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise DataError(f"budget is {self.budget!r}, expected a Budget, such as Budget(worker_hours=40)")
        if self.workers is not None:
            _check_workers(self.workers)
        for name in ("hang_timeout_s", "max_attempts"):
            if not _is_positive(value := getattr(self, name)):
                raise DataError(f"{name} is {value!r}, expected a finite number above 0")
        wait_limit_s(self.wait_limit)


def goal(limits: Limits, *, now: float, max_workers: int = 0) -> Goal:
    """Build the goal of a fit from its limits.

    Args:
        limits: limits of the fit.
        now: seconds since the epoch.
        max_workers: largest size of the cluster by its settings; 0 if unknown.

    Raises:
        DataError: the deadline has passed, or the cluster may not have as many workers.
    """
    budget, workers = limits.budget, limits.workers
    if workers is not None and max_workers and workers[1] > max_workers:
        raise DataError(
            f"workers is {tuple(workers)}, but this cluster may have {max_workers}: lower the maximum, or raise "
            "autoscaler.mostWorkers in the chart (CEREBRO_MOST_WORKERS for a local cluster)"
        )
    return Goal(
        finish_by=None if limits.finish_by is None else _timestamp(limits.finish_by, now),
        worker_hours=None if budget is None else float(budget.worker_hours),
        workers=None if workers is None else (workers[0], workers[1]),
    )


def wait_limit_s(limit: str | float | datetime.timedelta | None) -> float | None:
    """Convert a `wait_limit` to seconds.

    Raises:
        DataError: it is no time span above 0.
    """
    if limit is None:
        return None
    seconds: object = limit
    if isinstance(limit, datetime.timedelta):
        seconds = limit.total_seconds()
    elif isinstance(limit, str):
        text = limit.replace(" ", "")
        parts = _SPAN.findall(text)
        is_span = "".join(number + unit for number, unit in parts) == text
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts) if is_span else 0
    if not _is_positive(seconds):
        raise DataError(
            f"wait_limit is {limit!r}, expected a time span above 0, such as '2h', '90m', '1h30m', 7200 (seconds) or "
            "timedelta(hours=2)"
        )
    return float(seconds)  # type: ignore[arg-type]


def _timestamp(deadline: datetime.datetime | datetime.timedelta, now: float) -> float:
    if isinstance(deadline, datetime.timedelta):
        return now + deadline.total_seconds()
    if deadline.timestamp() <= now:
        moment = datetime.datetime.fromtimestamp(now, deadline.tzinfo).isoformat(timespec="seconds")
        raise DataError(f"finish_by is {deadline.isoformat()}, in the past: it is {moment} now")
    return deadline.timestamp()


def _check_deadline(deadline: object) -> None:
    if isinstance(deadline, datetime.timedelta):
        if deadline.total_seconds() <= 0:
            raise DataError(f"finish_by is {deadline}, expected a time span above 0 or a time in the future")
    elif not isinstance(deadline, datetime.datetime):
        raise DataError(
            f"finish_by is {deadline!r}, expected a datetime with a time zone, or a timedelta such as "
            "timedelta(hours=6)"
        )
    elif deadline.tzinfo is None:
        raise DataError(
            f"finish_by is {deadline.isoformat()}, without a time zone. Use finish_by.astimezone() for the time zone "
            "of this machine"
        )


def _check_workers(workers: object) -> None:
    expected = "expected minimum and maximum, such as workers=(2, 12)"
    numbers: list[Any] = [*workers] if isinstance(workers, Sequence) else []
    if len(numbers) != 2 or not all(type(number) is int for number in numbers):
        raise DataError(f"workers is {workers!r}, {expected}")
    if not 1 <= numbers[0] <= numbers[1] <= _MAX_WORKERS:
        raise DataError(f"workers is {tuple(numbers)}, {expected}: from 1 to {_MAX_WORKERS}")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
