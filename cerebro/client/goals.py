"""What users ask of a fit beside its models: when it is to end, what it may cost, how many workers it may have."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro.contract.runs import Goal
from cerebro.errors import DataError

_MOST = 1000
"""More workers than Cerebro runs with."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may cost.

    Attributes:
        worker_hours: hours for which workers that train may be there for it, summed over them. When they are spent the
            run is paused; who resumes it has it go on without a budget.
    """

    worker_hours: float


def goal(
    finish_by: datetime.datetime | datetime.timedelta | None,
    budget: Budget | None,
    workers: Sequence[int] | None,
    *,
    now: float,
    most: int = 0,
) -> Goal:
    """What a fit is to keep to.

    Args:
        finish_by: a time with its zone, or how long from now.
        workers: fewest and most.
        now: seconds since the epoch.
        most: workers that the cluster may have by its settings; 0: that is not known.

    Raises:
        DataError: one of them makes no sense.
    """
    return Goal(
        finish_by=None if finish_by is None else _finish_by(finish_by, now),
        worker_hours=None if budget is None else _worker_hours(budget),
        workers=None if workers is None else _range(workers, most),
    )


def _finish_by(given: object, now: float) -> float:
    if isinstance(given, datetime.timedelta):
        if given.total_seconds() <= 0:
            raise DataError(f"finish_by is {given}, expected a time span above 0, or a time that is to come")
        return now + given.total_seconds()
    if not isinstance(given, datetime.datetime):
        raise DataError(
            f"finish_by is {given!r}, expected a datetime with its zone, or a timedelta such as timedelta(hours=6)"
        )
    if given.tzinfo is None:
        raise DataError(
            f"finish_by is {given.isoformat()}, without a time zone: the cluster may be in another one. For the "
            "zone of this machine write finish_by.astimezone()"
        )
    if given.timestamp() <= now:
        moment = datetime.datetime.fromtimestamp(now, given.tzinfo).isoformat(timespec="seconds")
        raise DataError(f"finish_by is {given.isoformat()}, which is over: it is {moment}")
    return given.timestamp()


def _worker_hours(given: object) -> float:
    hours: Any = given.worker_hours if isinstance(given, Budget) else None
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours < float("inf"):
        what = f"{hours!r} worker-hours" if isinstance(given, Budget) else repr(given)
        raise DataError(f"budget is {what}, expected more than 0, such as Budget(worker_hours=40)")
    return float(hours)


def _range(given: object, most: int) -> tuple[int, int]:
    expected = "expected the fewest and the most workers, such as workers=(2, 12)"
    numbers: list[Any] = [*given] if isinstance(given, Sequence) else []
    if len(numbers) != 2 or not all(type(number) is int for number in numbers):
        raise DataError(f"workers is {given!r}, {expected}")
    low: int = numbers[0]
    high: int = numbers[1]
    if not 1 <= low <= high <= _MOST:
        raise DataError(f"workers is ({low}, {high}), {expected}: from 1 to {_MOST}, the fewest first")
    if most and high > most:
        raise DataError(
            f"workers is ({low}, {high}), but this cluster may have {most}: ask for no more, or raise "
            "autoscaler.mostWorkers in the chart (CEREBRO_MOST_WORKERS for a local cluster)"
        )
    return low, high
