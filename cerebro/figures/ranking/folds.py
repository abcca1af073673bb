"""Comparison of configurations in a cross-validation: mean, standard deviation, and ranks that allow for overlap.

Any two models of a configuration share most of their training rows, so the values of the folds are correlated, and an
ordinary paired t-test finds differences too often. The corrected resampled t-test adds the ratio of validation rows to
training rows to the variance (Nadeau and Bengio, *Machine Learning* 52, 2003). Holm's procedure (1979) corrects for all
pairs. Two folds leave one degree of freedom: then only very large differences count. Imports no NumPy.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev, variance

from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan
from cerebro.figures.ranking.repeats import tested_ranks, two_sided
from cerebro.figures.ranking.results import CONFIDENCE
from cerebro.state import Run
from cerebro.state.runs.folds import Configuration, configurations

MAX_RANKED = 100
"""Maximum number of configurations with ranks: the best ones. The number of tests grows with its square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldRow:
    """A configuration of a cross-validation.

    Attributes:
        rank: 1 more than the number of configurations that are significantly better; `None` without values, and for
            others than the best `MAX_RANKED`.
        configuration: such as ``m03``.
        model: its model of the first fold, such as ``m03-f1``.
        mean, std: mean and sample standard deviation over the folds, at `epoch`; `None` until each fold has a value.
        epoch: epoch with the best mean.
        values: value of each fold at that epoch.
        folds: number of folds.
        state: for people: ``training``, ``done``, or the models that have failed or stopped.
        hyperparams: of all its models.
    """

    rank: int | None
    configuration: str
    model: str
    mean: float | None
    std: float | None
    epoch: int | None
    values: tuple[float, ...]
    folds: int
    state: str
    hyperparams: Hyperparameters

    @property
    def text(self) -> str:
        """Mean, standard deviation and number of folds, such as ``0.912 ± 0.0031 (5 folds)``."""
        if self.mean is None or self.std is None:
            return f"no value of all {self.folds} folds"
        return f"{self.mean:.4g} ± {self.std:.2g} ({self.folds} folds)"


def fold_rows(run: Run, *, confidence: float = CONFIDENCE) -> list[FoldRow]:
    """Return the configurations of a cross-validation by their means, those without one last; none for other runs.

    Args:
        confidence: probability that no configuration is wrongly called better than another one.
    """
    request = run.fit_request
    if request.folds is None or not isinstance(run.plan, FitPlan):
        return []
    found = configurations(run.models.values(), request)
    sign = 1 if request.mode == "max" else -1
    measured = [each for each in found if each.values]
    measured = heapq.nlargest(MAX_RANKED, measured, key=lambda each: sign * fmean(each.values))
    test = partial(corrected_resampled, overlap=_overlap(run.plan))
    groups = [[sign * value for value in each.values] for each in measured]
    ranks = dict(zip((each.name for each in measured), tested_ranks(groups, test, confidence), strict=True))
    rows = [_row(each, ranks.get(each.name)) for each in found]
    return sorted(rows, key=lambda row: (row.mean is None, 0.0 if row.mean is None else -sign * row.mean))


def _row(found: Configuration, rank: int | None) -> FoldRow:
    cut_short = [f"{model.id} {model.state}" for model in found.models if model.is_cut_short]
    return FoldRow(
        rank=rank,
        configuration=found.name,
        model=found.models[0].id,
        mean=found.mean,
        std=stdev(found.values) if found.values else None,
        epoch=found.epoch,
        values=found.values,
        folds=len(found.models),
        state=", ".join(cut_short) or ("done" if found.has_ended else "training"),
        hyperparams=found.models[0].hyperparams,
    )


def _overlap(plan: FitPlan) -> float:
    """Return the ratio of validation rows to training rows, over all folds."""
    return 1 / (len(plan.folds) - 1)


def corrected_resampled(first: Sequence[float], second: Sequence[float], *, overlap: float) -> float:
    """Return the two-sided p-value of the corrected resampled t-test for equal means.

    Without any variance of the differences, different means have p = 0.

    Args:
        first, second: values of two configurations on the same folds.
        overlap: ratio of validation rows to training rows; 0 is the ordinary paired t-test.
    """
    differences = [one - other for one, other in zip(first, second, strict=True)]
    mean, spread = fmean(differences), variance(differences)
    if mean == 0:
        return 1.0
    corrected = (1 / len(differences) + overlap) * spread
    if corrected == 0 or math.isinf(squared := mean * mean / corrected):
        return 0.0
    return two_sided(squared, len(differences) - 1)
