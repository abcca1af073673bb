"""Rows of a test run that models get wrong or disagree on, for the page and the read API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.figures.ranking.rows import ComparedRows, RowsRequest, rows_request
from cerebro.state import Run
from dispatcher.ranking.outcomes import Outcome
from dispatcher.ranking.view import Choice, choice_of
from dispatcher.read_models.read_model import ReadModel


class RowsQuery(Contract):
    """Fit run (default: any), its test run (default: the newest with values), metric and mode (default: the fit run's),
    and two models to compare (default: the two with the best means).
    """

    fit: str = Field("", max_length=60)
    run: str = Field("", max_length=60)
    metric: str = Field("", max_length=200)
    mode: Literal["max", "min", ""] = ""
    first: str = Field("", max_length=60)
    second: str = Field("", max_length=60)


@dataclass(frozen=True, kw_only=True)
class RowsView:
    """Rows of one test run.

    Attributes:
        run: test run, or an empty text without one.
        fit: fit run of its models.
        rows: `None` while they are being selected or with a `reason`.
        reason: why there are no rows.
    """

    run: str = ""
    fit: str = ""
    rows: ComparedRows | None = None
    reason: str = ""


def choose_rows(read_model: ReadModel, query: RowsQuery) -> Choice[RowsRequest]:
    """Return the test run of a query and the request of its rows."""
    pair = (query.first, query.second) if query.first and query.second else ()

    def build(run: Run) -> RowsRequest:
        found = rows_request(read_model.state, run, metric=query.metric, mode=query.mode, disagree=pair)
        locator = read_model.record.locators.splits().get(found.source.split) if found.source else None
        if found.source is None or locator is None:
            return found
        source = found.source.model_copy(update={"objects": locator.objects or ""})
        return found.model_copy(update={"source": source})

    return choice_of(read_model, query.run, query.fit, build)


def rows_view(choice: Choice[RowsRequest], outcome: Outcome | None) -> RowsView:
    """Return the view of a chosen run and its rows, if they are selected."""
    return RowsView(
        run=choice.run,
        fit=choice.fit,
        rows=outcome.rows if outcome else None,
        reason=choice.reason or (outcome.reason if outcome else ""),
    )
