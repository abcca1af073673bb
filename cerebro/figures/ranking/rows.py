"""Rows of a test run that models get wrong or disagree on: the request and the result. Imports no NumPy."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.contract.runs import EvaluatePlan
from cerebro.errors import DataError
from cerebro.figures.ranking.results import Mode, ranking_request
from cerebro.state import ExperimentState, Run

MAX_SIZE = 100
"""Maximum number of rows of each list."""
LABEL, PREDICTION = "label", "prediction"
"""Names of metrics per row that describe a row: its label, and the prediction of a model."""


class RowSource(Contract):
    """Place of the tested rows.

    Attributes:
        partitions: numbers of the tested partitions.
        objects: locator of the objects that rows name; empty without any.
    """

    dataset: str
    split: str
    partitions: tuple[int, ...]
    objects: str = ""


class RowsRequest(Contract):
    """Files and options of a selection of rows.

    Attributes:
        files: model -> its files of metrics per row on the shared volume, in the order of the partitions.
        metric: metric that orders the rows; empty for the only one in the files.
        mode: "max" if higher is better, or "min"; empty if it is unknown.
        disagree: two models to compare; default: the two with the best means.
        shown: maximum number of models whose values are returned.
        size: maximum number of rows of each list.
        missing: tested models without values, such as after a failure.
        source: where the fields of the rows are.
    """

    files: dict[str, tuple[str, ...]]
    metric: str = ""
    mode: Mode = ""
    disagree: tuple[str, ...] = Field((), max_length=2)
    shown: int = Field(5, ge=1, le=10)
    size: int = Field(20, ge=1, le=MAX_SIZE)
    missing: tuple[str, ...] = ()
    source: RowSource | None = None


class ComparedRow(Contract):
    """A row with the values of some models.

    Attributes:
        mean: mean of the metric over all tested models.
        values: value of each model of `ComparedRows.models`.
        label: its metric ``label``, if the test returned one.
        predictions: the metric ``prediction`` of each model, if the test returned one.
        fields: (name, text) of its small fields.
        image: name of its thumbnail; empty without one.
    """

    id: int | str
    mean: float
    values: tuple[float, ...]
    label: float | None = None
    predictions: tuple[float | None, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    image: str = ""


class ComparedRows(Contract):
    """Rows that models get wrong, and rows where two models disagree.

    Attributes:
        rows: number of tested rows.
        metrics: all metrics with values per row.
        all_models: all models with values, the best mean first.
        models: models whose values are shown: the two compared ones, then the best others.
        all_wrong: number of rows that every model gets wrong; `None` unless all values are 0 or 1.
        hardest: rows with the worst mean over all models, worst first.
        disagree: rows where the first two models differ most, largest difference first.
        different: number of rows where they differ.
        note: why fields or thumbnails of rows are missing.
        missing: tested models without values.
    """

    metric: str
    mode: Mode
    rows: int
    metrics: tuple[str, ...]
    all_models: tuple[str, ...]
    models: tuple[str, ...]
    all_wrong: int | None
    hardest: tuple[ComparedRow, ...]
    disagree: tuple[ComparedRow, ...]
    different: int
    note: str = ""
    missing: tuple[str, ...] = ()


def rows_request(
    state: ExperimentState, run: Run, *, metric: str = "", mode: str = "", disagree: tuple[str, ...] = ()
) -> RowsRequest:
    """Return the request for the rows of a test run.

    Args:
        metric: default: the metric that ranks the models of the fit run.
        mode: "max", "min" or empty. Default: the fit run's, if the metric is the same.
        disagree: two models to compare, or none for the two best.

    Raises:
        DataError: as `ranking_request`, or the two models are the same.
    """
    assert isinstance(run.plan, EvaluatePlan)
    found = ranking_request(state, run, metric=metric, mode=mode)
    require_two(disagree)
    return RowsRequest(
        files=found.files,
        metric=found.metric,
        mode=found.mode,
        disagree=disagree,
        missing=found.missing,
        source=RowSource(
            dataset=run.plan.dataset,
            split=getattr(run.request, "split", "test"),
            partitions=tuple(run.plan.partitions),
        ),
    )


def require_two(disagree: tuple[str, ...]) -> None:
    """Raise DataError unless `disagree` names two different models, or none."""
    if disagree and len(set(disagree)) != 2:
        raise DataError(
            f"disagree names {' and '.join(disagree)}: name two different models, such as ('m03', 'm07')"
        )
