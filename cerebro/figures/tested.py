"""What test runs measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import TaskResult
from cerebro.state import ExperimentState, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One model on a split: of its checkpoint after `epoch`, on `rows` rows; NaN of no rows.

    Attributes:
        parts: tasks that the model's test was cut into: 1 if user code saw the whole split at once, and `metrics` are
            what it returned. Else they are means over the parts committed so far (`done`), weighted by rows.
    """

    model: str
    epoch: int
    rows: int
    metrics: Mapping[str, float]
    parts: int
    done: int


def tested(run: Run) -> list[Measured]:
    """Metrics of a planned test run, per model, as far as its tasks are committed."""
    assert isinstance(run.plan, EvaluatePlan)
    results: defaultdict[str | None, list[TaskResult]] = defaultdict(list)
    parts: defaultdict[str | None, int] = defaultdict(int)
    for task in run.tasks.values():
        parts[task.key.model] += 1
        if task.result is not None:
            results[task.key.model].append(task.result)
    return [
        Measured(
            model=model,
            epoch=epoch,
            rows=sum(r.rows for r in results[model]),
            metrics=_metrics(results[model]),
            parts=parts[model],
            done=len(results[model]),
        )
        for model, epoch in run.plan.models.items()
    ]


def averaged(found: Iterable[Measured]) -> str:
    """What to know of metrics that are means over parts of a split; empty if user code saw the whole split."""
    parts = max((one.parts for one in found), default=1)
    if parts <= 1:
        return ""
    return (
        f"means over {parts} parts of the split, weighted by rows: for accuracy or a mean loss the same as of the "
        "whole split, for AUC, F1 or BLEU not"
    )


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


def _metrics(results: list[TaskResult]) -> dict[str, float]:
    total = sum(result.rows for result in results)
    names = sorted(set.intersection(*(set(result.metrics) for result in results)) if results else set())
    if total and len(results) == 1:  # to the bit: to multiply and divide would round
        return {name: results[0].metrics[name] for name in names}
    sums = {name: sum(r.metrics[name] * r.rows for r in results) for name in names}
    return {name: found / total if total else math.nan for name, found in sums.items()}
