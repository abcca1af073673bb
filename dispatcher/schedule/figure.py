"""The figure of a schedule: takes what ran and what is planned, and has `cerebro.figures` draw."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.figures import Theme
from dispatcher.pages.drawing import Drawing, explained, nothing
from dispatcher.reading.read_model import ReadModel


class ScheduleFigureQuery(Contract):
    """`model` is highlighted."""

    fit: str = Field("", max_length=60)
    model: str = Field("", max_length=100)
    theme: Theme = "light"


def schedule(read_model: ReadModel, asked: ScheduleFigureQuery, now: float) -> Drawing:
    """What ran where when."""
    run = read_model.fit(asked.fit)
    if run is None:
        return nothing()
    spans = figures.spans(run, now)
    workers = figures.worker_rows(read_model.state, spans)
    draw = partial(
        figures.schedule,
        spans,
        workers=workers,
        models=list(run.models),
        landmarks=figures.landmarks(read_model.state, run, now),
        planned=figures.planned(run, now, devices=workers),
        beside=figures.beside_units(run, now),
        highlight=asked.model,
        theme=asked.theme,
    )
    return explained(draw, f"No unit of {run.id} has started yet, and no plan is followed.")
