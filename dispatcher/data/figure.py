"""Progress of preprocessing as a figure, for the read API (`api.routes.FIGURES`). Drawn by `cerebro.figures`."""

from __future__ import annotations

from functools import partial

from cerebro import figures
from cerebro.contract.base import Contract
from cerebro.figures import Theme
from dispatcher.pages.drawing import Drawing, empty_drawing, with_reason
from dispatcher.read_models.read_model import ReadModel


class EtlFigureQuery(Contract):
    """The theme."""

    theme: Theme = "light"


def etl(read_model: ReadModel, query: EtlFigureQuery, now: float) -> Drawing:
    """Draw the rows of each split that are done, failed and pending."""
    runs = [run for run in read_model.state.runs.values() if run.kind == "etl" and run.plan is not None]
    dataset = read_model.state.datasets.get(runs[-1].plan.dataset) if runs and runs[-1].plan else None
    if dataset is None:
        return empty_drawing("No data set yet: start an ETL run with run_etl.")
    live = {key: point.rows for key, point in read_model.live.newest.items()}
    return with_reason(
        partial(figures.etl, figures.etl_progress(dataset, runs[-1], live), theme=query.theme), ""
    )
