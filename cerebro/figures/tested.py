"""What test runs measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.metrics import merged
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import TaskResult
from cerebro.state import ExperimentState, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One model on a split: of its checkpoint after `epoch`, on `rows` rows; NaN of no rows.

    Attributes:
        parts: tasks that the model's test was cut into: 1 if user code saw the whole split at once, and `metrics` are
            what it returned. Else they are put together from the parts committed so far (`done`).
        means: of these `metrics`, those that are means over parts, weighted by rows; the others are of all rows.
    """

    model: str
    epoch: int
    rows: int
    metrics: Mapping[str, float]
    parts: int
    done: int
    means: tuple[str, ...] = ()


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
            metrics=(metrics := merged([result.part for result in results[model]])),
            means=tuple(name for name in metrics if name not in results[model][0].ratios),
            parts=parts[model],
            done=len(results[model]),
        )
        for model, epoch in run.plan.models.items()
    ]


def averaged(found: Sequence[Measured]) -> str:
    """What to know of metrics that are means over parts of a split; empty if none is."""
    parts = max((one.parts for one in found), default=1)
    names = sorted({name for one in found for name in one.means})
    if parts <= 1 or not names:
        return ""
    is_all = len(names) == len({name for one in found for name in one.metrics})
    which = "" if is_all else f" (of {', '.join(names)}; the others are of all rows)"
    return (
        f"means over {parts} parts of the split, weighted by rows{which}: for accuracy or a mean loss the same as of "
        "the whole split, for F1, AUC or BLEU not. A metric that is a quotient of counts, as F1 is, is exact if test() "
        "returns it as cerebro.Ratio(numerator, denominator)"
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
