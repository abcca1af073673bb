"""The figure of a schedule: takes what ran and what is planned, and has `cerebro.figures` draw."""

from __future__ import annotations

import math
from functools import partial

from pydantic import Field

from cerebro import figures
from cerebro.figures import Figure, Theme
from cerebro.state import Run
from cerebro.state.log_pages import LogPages
from dispatcher.pages.drawing import Drawing, explained, nothing
from dispatcher.reading.from_log import FromLog
from dispatcher.reading.read_model import ReadModel
from dispatcher.schedule.window import Stretch, WindowQuery, stretch


class ScheduleFigureQuery(WindowQuery):
    """`model` is highlighted."""

    fit: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    theme: Theme = "light"


def schedule(read_model: ReadModel, asked: ScheduleFigureQuery, now: float) -> Drawing | FromLog[Figure]:
    """What ran where when."""
    run = read_model.fit(asked.fit)
    if run is None:
        return nothing()
    found = stretch(read_model, run, asked, now)
    if found is not None and found.is_in_log:
        return _of_log(read_model, run, asked, found)
    spans, beside = figures.spans(run, now), figures.beside_sub_epochs(run, now)
    landmarks = figures.landmarks(read_model.state, run, now)
    if found is not None and (found.is_chosen or found.kept_since):
        since_s, until_s = found.seconds
        # Without a window it ends with what is planned.
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
        beside=beside,
        highlight=asked.model,
        theme=asked.theme,
    )
    return explained(draw, _why_none(run.id, found))


def _of_log(read_model: ReadModel, run: Run, asked: ScheduleFigureQuery, found: Stretch) -> FromLog[Figure]:
    """The same of a stretch that the fold lacks sub-epochs of."""
    workers, models = figures.worker_rows(read_model.state, ()), list(run.models)
    landmarks = figures.landmarks(read_model.state, run, found.end)

    def make(pages: LogPages) -> Figure:
        read = pages.window(found.log, found.run, found.since, found.until)
        spans = figures.spans_of(read.tries, found.zero, read.until)
        draw = partial(
            figures.schedule,
            spans,
            workers=figures.rows_with(workers, spans),
            models=models,
            landmarks=figures.within(landmarks, read.since - found.zero, read.until - found.zero),
            beside=figures.spans_of(read.tries, found.zero, read.until, figures.BESIDE),
            highlight=asked.model,
            theme=asked.theme,
        )
        return explained(draw, _why_none(found.run, found, *read.problems))()

    return FromLog(make)


def _why_none(run: str, found: Stretch | None, *problems: str) -> str:
    if problems:
        return f"No sub-epoch can be shown: {'; '.join(problems)}."
    if found is not None and found.is_chosen:
        return f"No sub-epoch of {run} ran then."
    return f"No sub-epoch of {run} has started yet, and no plan is followed."
