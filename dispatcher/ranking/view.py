"""Ranking of a test run's models, for the page and the read API: a function of the read model and a ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.errors import DataError, NotFoundError
from cerebro.figures.ranking.results import (
    CONFIDENCE,
    RankedModel,
    Ranking,
    RankingRequest,
    chosen_test,
    planned_tests,
    ranking_request,
)
from cerebro.state import Run
from dispatcher.read_models.read_model import ReadModel

Request = TypeVar("Request")

DEFAULT_SIZE = 100
MAX_SIZE = 10_000


class RankingQuery(Contract):
    """Fit run (default: any), its test run (default: the newest with values), metric and mode (default: the fit run's),
    confidence, and maximum models.
    """

    fit: str = Field("", max_length=60)
    run: str = Field("", max_length=60)
    metric: str = Field("", max_length=200)
    mode: Literal["max", "min", ""] = ""
    confidence: float = Field(CONFIDENCE, gt=0.5, lt=1.0)
    size: int = Field(DEFAULT_SIZE, ge=1, le=MAX_SIZE)


@dataclass(frozen=True, kw_only=True)
class RankingView:
    """Ranking of one test run.

    Attributes:
        run: test run, or an empty text without one.
        fit: fit run of its models.
        ranking: the ranking with its best `RankingQuery.size` models; `None` while it is computed or with a `reason`.
        sentences: the best model and ties in words.
        total: number of ranked models.
        reason: why there is no ranking.
    """

    run: str = ""
    fit: str = ""
    ranking: Ranking | None = None
    sentences: tuple[str, ...] = ()
    total: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class IntervalBar:
    """Position of an interval and its mean in a drawing, as percentages of its width."""

    start: float
    width: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class Choice(Generic[Request]):
    """Test run of a query, all test runs, and the request; a `reason` instead of a request.

    Attributes:
        created: creation time of the experiment.
    """

    created: float

    runs: tuple[str, ...] = ()
    run: str = ""
    fit: str = ""
    request: Request | None = None
    reason: str = ""


def choose(read_model: ReadModel, query: RankingQuery) -> Choice[RankingRequest]:
    """Return the test run of a query and the request of its ranking."""

    def build(run: Run) -> RankingRequest:
        return ranking_request(
            read_model.state, run, metric=query.metric, mode=query.mode, confidence=query.confidence
        )

    return choice_of(read_model, query.run, query.fit, build)


def choice_of(
    read_model: ReadModel, run_id: str, fit: str, build: Callable[[Run], Request]
) -> Choice[Request]:
    """Return a test run and its request.

    Args:
        run_id: id of the test run; empty for the newest with values per row.
        fit: only tests of this fit run's models; empty for all.
        build: builds the request, or raises DataError.
    """
    state = read_model.state
    runs = tuple(run.id for run in planned_tests(state, fit))
    created = read_model.record.created
    try:
        run = chosen_test(state, run_id, fit=fit)
    except NotFoundError as error:
        return Choice(created=created, runs=runs, reason=str(error))
    of_fit = getattr(run.plan, "fit", "")
    try:
        request = build(run)
    except DataError as error:
        return Choice(created=created, runs=runs, run=run.id, fit=of_fit, reason=str(error))
    return Choice(created=created, runs=runs, run=run.id, fit=of_fit, request=request)


def view_of(choice: Choice[RankingRequest], ranking: Ranking | None, reason: str, size: int) -> RankingView:
    """Return the view of a chosen run and its ranking, if it is computed."""
    shown = ranking.model_copy(update={"models": ranking.models[:size]}) if ranking else None
    return RankingView(
        run=choice.run,
        fit=choice.fit,
        ranking=shown,
        sentences=ranking.sentences() if ranking else (),
        total=len(ranking.models) if ranking else 0,
        reason=choice.reason or reason,
    )


def interval_bars(models: tuple[RankedModel, ...]) -> tuple[IntervalBar, ...]:
    """Return the intervals on a common scale from the lowest to the highest bound."""
    low = min((each.low for each in models), default=0.0)
    span = max((each.high for each in models), default=1.0) - low or 1.0
    return tuple(
        IntervalBar(
            start=100 * (each.low - low) / span,
            width=100 * (each.high - each.low) / span,
            mean=100 * (each.mean - low) / span,
        )
        for each in models
    )
