"""Gantt chart of a fit run's schedule, for `cerebro.client.reporting.drawings` and `dispatcher.schedule.figure`.

`spans` computes the attempts and other marks from the state or the log, `planned` the sub-epochs of the plan.
`drawing` draws them with the marks of `bars` (sub-epochs), `surroundings` (everything else) and `buckets` (long runs).
`time_range` cuts a schedule to a time range.
"""

from cerebro.figures.schedule.drawing import schedule
from cerebro.figures.schedule.planned import PlannedSpan, planned
from cerebro.figures.schedule.spans import (
    OTHER_TASK_KINDS,
    Absence,
    Landmarks,
    Outcome,
    Span,
    landmarks,
    other_tasks,
    rows_with,
    spans,
    spans_of,
    worker_rows,
)
from cerebro.figures.schedule.time_range import within

__all__ = [
    "OTHER_TASK_KINDS",
    "Absence",
    "Landmarks",
    "Outcome",
    "PlannedSpan",
    "Span",
    "landmarks",
    "other_tasks",
    "planned",
    "rows_with",
    "schedule",
    "spans",
    "spans_of",
    "within",
    "worker_rows",
]
