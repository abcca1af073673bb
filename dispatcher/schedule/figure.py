"""Gantt chart of a schedule, drawn by `cerebro.figures`. `api.routes.FIGURES` lists it for the read API.

A time range that the fold has compacted is read from the log, after the read model's lock is released (`FromLog`).
"""

from __future__ import annotations

import math
from functools import partial

from pydantic import Field

from cerebro import figures
from cerebro.figures import Figure, Theme
from cerebro.state import Run
from cerebro.state.log_pages import LogPages
from dispatcher.pages.drawing import Drawing, empty_drawing, with_reason
from dispatcher.read_models.from_log import FromLog
from dispatcher.read_models.read_model import ReadModel
from dispatcher.schedule.window import TimeRange, WindowQuery, time_range


class ScheduleFigureQuery(WindowQuery):
    """Time range and fit run of the chart. `model`: id of the model to highlight."""

    fit: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    theme: Theme = "light"


def schedule(read_model: ReadModel, query: ScheduleFigureQuery, now: float) -> Drawing | FromLog[Figure]:
    """Draw what ran where, and the plan."""
    run = read_model.fit(query.fit)
    if run is None:
        return empty_drawing()
    found = time_range(read_model, run, query, now)
    if found is not None and found.is_in_log:
        return _from_log(read_model, run, query, found)
    spans, other_spans = figures.spans(run, now), figures.other_tasks(run, now)
    landmarks = figures.landmarks(read_model.state, run, now)
    if found is not None and (found.is_chosen or found.kept_since):
        since_s, until_s = found.seconds
        # Without a window the chart shows the whole plan.
        landmarks = figures.within(landmarks, since_s, until_s if found.until < found.end else math.inf)
        spans = [span for span in spans if span.start_s < until_s and span.end_s > since_s]
    is_at_end = found is None or found.until >= found.end
    workers = figures.worker_rows(read_model.state, spans)
    draw = partial(
        figures.schedule,
        spans,
        workers=workers,
        models=list(run.models),
        landmarks=landmarks,
        planned=figures.planned(run, now, devices=workers) if is_at_end else (),
        other_tasks=other_spans,
        highlight=query.model,
        theme=query.theme,
    )
    return with_reason(draw, _empty_reason(run.id, found))


def _from_log(
    read_model: ReadModel, run: Run, query: ScheduleFigureQuery, found: TimeRange
) -> FromLog[Figure]:
    """Draw a time range with sub-epochs from the log."""
    workers, models = figures.worker_rows(read_model.state, ()), list(run.models)
    landmarks = figures.landmarks(read_model.state, run, found.end)

    def make(pages: LogPages) -> Figure:
        read = pages.window(found.log, found.run, found.since, found.until)
        spans = figures.spans_of(read.task_attempts, found.zero, read.until)
        draw = partial(
            figures.schedule,
            spans,
            workers=figures.rows_with(workers, spans),
            models=models,
            landmarks=figures.within(landmarks, read.since - found.zero, read.until - found.zero),
            other_tasks=figures.spans_of(
                read.task_attempts, found.zero, read.until, figures.OTHER_TASK_KINDS
            ),
            highlight=query.model,
            theme=query.theme,
        )
        return with_reason(draw, _empty_reason(found.run, found, *read.problems))()

    return FromLog(make)


def _empty_reason(run: str, found: TimeRange | None, *problems: str) -> str:
    if problems:
        return f"The sub-epochs cannot be read: {'; '.join(problems)}."
    if found is not None and found.is_chosen:
        return f"{run} ran no sub-epoch in this time range."
    return f"{run} has neither started a sub-epoch nor a plan yet."
