"""Metrics of test runs, per model, from their committed tasks. Pure.

Tables of notebooks, the report and the page's runs tab use it. It computes no metrics: user code in `test` does, and
`cerebro.contract.metrics` combines the parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.metrics import merged
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.state import ExperimentState, Run
from cerebro.state.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Metrics of one model on a split, of its checkpoint after `epoch`; without rows they are NaN.

    Attributes:
        parts: number of tasks of the model's test. With one, user code saw the whole split and `metrics` is its
            result. With several, `metrics` combines the committed ones.
        done: number of committed tasks.
        means: metrics that are means over parts, weighted by rows; the others are exact for all rows.
    """

    model: str
    epoch: int
    rows: int
    metrics: Mapping[str, float]
    parts: int
    done: int
    means: tuple[str, ...] = ()


def tasks_by_model(run: Run) -> dict[str, list[Task]]:
    """Return the tasks of each model of a planned test run."""
    by_model: defaultdict[str, list[Task]] = defaultdict(list)
    for task in run.tasks.by_key.values():
        by_model[task.key.model or ""].append(task)
    return dict(by_model)


def measured(model: str, epoch: int, tasks: Sequence[Task]) -> Measured:
    """Return the metrics of one model from the committed ones of its test's tasks."""
    results = [task.result for task in tasks if task.result is not None]
    metrics = merged([result.part for result in results])
    return Measured(
        model=model,
        epoch=epoch,
        rows=sum(result.rows for result in results),
        metrics=metrics,
        means=tuple(name for name in metrics if name not in results[0].ratios),
        parts=len(tasks),
        done=len(results),
    )


def tested(run: Run) -> list[Measured]:
    """Return the metrics of each model of a planned test run, from its committed tasks."""
    assert isinstance(run.plan, EvaluatePlan)
    tasks = tasks_by_model(run)
    return [measured(model, epoch, tasks.get(model, [])) for model, epoch in run.plan.models.items()]


def averaged(measured: Sequence[Measured]) -> str:
    """Explain metrics that are means over parts of a split; empty without such metrics."""
    parts = max((one.parts for one in measured), default=1)
    names = sorted({name for one in measured for name in one.means})
    if parts <= 1 or not names:
        return ""
    is_all = len(names) == len({name for one in measured for name in one.metrics})
    which = "" if is_all else f" ({', '.join(names)}; the others are of all rows)"
    return (
        f"means over {parts} parts of the split, weighted by rows{which}: the same as of the whole split for "
        "accuracy or a mean loss, but not for F1, AUC or BLEU. A quotient of counts, such as F1, is exact if "
        "test() returns it as cerebro.Ratio(numerator, denominator)"
    )


def other_rows(state: ExperimentState, run: Run) -> str:
    """Name the ETL run whose rows a test reads, if the models were trained on another data set; else empty."""
    assert isinstance(run.plan, EvaluatePlan)
    trained_on, etl_runs = state.runs[run.plan.fit].plan, state.etl_runs(run.plan.dataset)
    if not etl_runs or trained_on is None or trained_on.dataset == run.plan.dataset:
        return ""
    return f"{run.id} reads the rows of {etl_runs[-1].id}; {run.plan.fit} trained on another data set"


def tests_of(state: ExperimentState, fit: Run) -> Iterator[Run]:
    """Yield the planned test runs of a fit run's models, oldest first."""
    for run in state.runs.values():
        request = run.request
        if (
            isinstance(request, EvaluateRequest)
            and (request.kind, request.fit) == ("test", fit.id)
            and run.plan is not None
        ):
            yield run
