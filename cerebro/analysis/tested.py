"""What test runs measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import TaskResult
from cerebro.state import ExperimentState, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One model on a split: of its checkpoint after `epoch`, on `rows` rows; NaN of no rows."""

    model: str
    epoch: int
    rows: int
    metrics: Mapping[str, float]


def tested(run: Run) -> list[Measured]:
    """Metrics of a planned test run, per model: means over the partitions committed so far, weighted by rows."""
    assert isinstance(run.plan, EvaluatePlan)
    results: defaultdict[str | None, list[TaskResult]] = defaultdict(list)
    for task in run.tasks.values():
        if task.result is not None:
            results[task.key.model].append(task.result)
    return [
        Measured(
            model=model, epoch=epoch, rows=sum(r.rows for r in results[model]), metrics=_means(results[model])
        )
        for model, epoch in run.plan.models.items()
    ]


def tests_of(state: ExperimentState, fit: Run) -> Iterator[Run]:
    """Planned test runs of models of a fit run, oldest first."""
    for run in state.runs.values():
        asked = run.request
        if (
            isinstance(asked, EvaluateRequest)
            and (asked.kind, asked.fit) == ("test", fit.id)
            and run.plan is not None
        ):
            yield run


def _means(results: list[TaskResult]) -> dict[str, float]:
    total = sum(result.rows for result in results)
    names = sorted(set.intersection(*(set(result.metrics) for result in results)) if results else set())
    sums = {name: sum(r.metrics[name] * r.rows for r in results) for name in names}
    return {name: found / total if total else math.nan for name, found in sums.items()}
