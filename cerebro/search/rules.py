"""Stop rules: `Search` asks them after each epoch with metrics whether to stop the model, under any procedure. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from cerebro.contract.search import Above, Below, Median, Plateau, StopRule
from cerebro.errors import SearchError
from cerebro.search.procedure import Facts, Measured
from cerebro.search.searched import SearchedModel, SearchedModels


class StopRules:
    """The stop rules of a run, and the running means for the median rule."""

    def __init__(self, rules: Sequence[StopRule], facts: Facts) -> None:
        self._rules = rules
        self._facts = facts
        self._means = _RunningMeans()

    def stop_reason(self, report: Measured, models: SearchedModels) -> str:
        """Return the reason to stop the model, or "". `models` must already include the report.

        Raises:
            SearchError: a rule names a metric that the model does not have.
        """
        model = models[report.model]
        found = [why for rule in self._rules if (why := self._why(rule, report, model))]
        if not model.is_apart:
            self._means.add(report.model, report.epoch, self._facts.score(report.value))
        return found[0] if found else ""

    def _why(self, rule: StopRule, report: Measured, model: SearchedModel) -> str:
        match rule:
            case Plateau():
                return self._plateau(rule, report, model)
            case Median():
                return "" if model.is_apart else self._median(rule, report, model)
            case Above() | Below():
                return _limit(rule, report)

    def _plateau(self, rule: Plateau, report: Measured, model: SearchedModel) -> str:
        since = report.epoch - rule.epochs
        earlier = [self._facts.score(value) for epoch, value in model.values.items() if epoch <= since]
        recent = [self._facts.score(value) for epoch, value in model.values.items() if epoch > since]
        if not earlier or max(recent) > max(earlier) + rule.least:
            return ""
        best = self._facts.score(max(earlier))
        return f"{self._facts.metric} has not become better than {best:.6g} in {rule.epochs} epochs"

    def _median(self, rule: Median, report: Measured, model: SearchedModel) -> str:
        means = self._means.at(report.epoch)
        if report.epoch < rule.grace or len(means) < rule.least:
            return ""
        best = max(self._facts.score(value) for epoch, value in model.values.items() if epoch <= report.epoch)
        median = statistics.median(means)
        if best >= median:
            return ""
        return (
            f"its best {self._facts.metric} after {report.epoch} epochs, {self._facts.score(best):.6g}, is worse than "
            f"the median of {len(means)} others' means, {self._facts.score(median):.6g}"
        )


class _RunningMeans:
    """Mean of each model's scores up to each epoch. Add a model's epochs in ascending order."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._at: defaultdict[int, list[float]] = defaultdict(list)

    def add(self, model: str, epoch: int, score: float) -> None:
        total, count = self._sums.get(model, (0.0, 0))
        self._sums[model] = (total + score, count + 1)
        self._at[epoch].append((total + score) / (count + 1))

    def at(self, epoch: int) -> Sequence[float]:
        return self._at[epoch]


def _limit(rule: Above | Below, report: Measured) -> str:
    value = report.metrics.get(rule.metric)
    if value is None:
        raise SearchError(
            f"a stop rule is about the metric {rule.metric!r}, which {report.model} does not have: it has "
            f"{', '.join(sorted(report.metrics)) or 'none'}; start the run again with one of these"
        )
    if isinstance(rule, Above):
        return f"{rule.metric} is {value:.6g}, above {rule.limit:g}" if value > rule.limit else ""
    return f"{rule.metric} is {value:.6g}, below {rule.limit:g}" if value < rule.limit else ""
