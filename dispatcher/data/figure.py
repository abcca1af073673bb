"""The figure of preprocessing: takes how far it is, and has `cerebro.figures` draw."""

from __future__ import annotations

from functools import partial

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.figures import Theme
from dispatcher.pages.drawing import Drawing, explained, nothing
from dispatcher.reading.read_model import ReadModel


class EtlFigureQuery(Contract):
    """Nothing but the theme."""

    theme: Theme = "light"


def etl(read_model: ReadModel, asked: EtlFigureQuery, now: float) -> Drawing:
    """How far preprocessing is."""
    runs = [run for run in read_model.state.runs.values() if run.kind == "etl" and run.plan is not None]
    dataset = read_model.state.datasets.get(runs[-1].plan.dataset) if runs and runs[-1].plan else None
    if dataset is None:
        return nothing("Nothing is preprocessed yet: run_etl plans it.")
    live = {key: point.rows for key, point in read_model.live.newest.items()}
    return explained(
        partial(figures.etl, figures.etl_progress(dataset, runs[-1], live), theme=asked.theme), ""
    )
